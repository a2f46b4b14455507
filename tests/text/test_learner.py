import itertools
import os
import random
import string
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from keras_bert_flow.text.learner import learn_vocabulary
from keras_bert_flow.text.tokenizers.normalization import normalize_text
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from tests.patience import PATIENCE_SECONDS

DATA = os.environ.get("KBF_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")

HUGS = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}
HUGS_CHARACTERS = [*"bghnpsu", "##b", "##g", "##h", "##n", "##p", "##s", "##u"]


def make_counts(seed, words=60, alphabet="abc", longest=9):
    rng = random.Random(seed)
    return {"".join(rng.choices(alphabet, k=rng.randint(1, longest))): rng.randint(1, 6) for _ in range(words)}


def count_tokens(pieces, word_counts):
    """Count the tokens that the encoder of `tokenizers` makes of all counted words."""
    model = models.WordPiece({piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]")
    return sum(count * len(model.tokenize(word)) for word, count in word_counts.items())


@pytest.mark.parametrize(
    ("room", "longer"),
    [
        (0, []),
        (1, ["hug"]),  # 15 occurrences, two tokens fewer each: more than any other
        (2, ["hug", "pun"]),
        (3, ["hug", "pun", "pug"]),  # `pug` is seen more often than `bun`; `##un` would save `bun` one token only
    ],
)
def test_learner_chooses_as_by_hand(room, longer):
    assert learn_vocabulary(HUGS, 19 + room) == [*SPECIAL_PIECES, *HUGS_CHARACTERS, *longer]


@pytest.mark.parametrize("seed", range(8))
def test_learner_comes_close_to_the_best_choice_there_is(seed):
    counts = make_counts(seed, words=12, alphabet="abc", longest=5)
    pieces = learn_vocabulary(counts, 5 + 6 + 3)
    substrings = {"##" * (i > 0) + w[i:j] for w in counts for i in range(len(w)) for j in range(i + 2, len(w) + 1)}
    best = min(count_tokens([*pieces[:11], *three], counts) for three in itertools.combinations(substrings, 3))
    none = count_tokens(pieces[:11], counts)
    assert none - count_tokens(pieces, counts) >= 0.8 * (none - best)


def test_learner_fills_with_unused_when_nothing_is_left():
    pieces = learn_vocabulary({"ab": 3, "cd": 1}, 18)  # one candidate, then the word seen once
    assert pieces[13:] == ["ab", "cd", "[unused0]", "[unused1]", "[unused2]"]
    assert learn_vocabulary({}, 7) == [*SPECIAL_PIECES, "[unused0]", "[unused1]"]


def test_learner_does_not_take_a_filler_that_is_a_piece():
    pieces = learn_vocabulary({"[unused0]": 3}, 40)
    assert len(pieces) == len(set(pieces)) == 40
    assert "[unused1]" in pieces


def test_learner_ignores_the_order_of_the_counts():
    counts = make_counts(3, words=300, alphabet=string.ascii_lowercase)
    items = list(counts.items())
    random.Random(1).shuffle(items)
    assert list(dict(items)) != list(counts)
    assert learn_vocabulary(dict(items), 250) == learn_vocabulary(counts, 250)


def test_learner_settles_ties_by_string_order():
    assert learn_vocabulary({"ba": 2, "ab": 2, "ac": 2}, 14)[11:] == ["ab", "ac", "ba"]


def test_learner_leaves_out_rare_characters():
    counts = {"ab": 5, "az": 1, "zzy": 1, "ca": 2}
    pieces = learn_vocabulary(counts, 16, min_character_count=2)  # z occurs 3 times, y once, so `zzy` is left out
    assert pieces[5:13] == ["a", "b", "c", "z", "##a", "##b", "##c", "##z"]
    assert pieces[13:] == ["ab", "ca", "az"]
    assert "##z" not in learn_vocabulary(counts, 16, min_character_count=4)


def test_learner_keeps_the_most_frequent_cjk_characters():
    counts = {"中": 5, "国": 3, "人": 3, "山": 1, "ab": 1, "か": 1, "。": 1}
    pieces = learn_vocabulary(counts, 15, max_cjk_characters=2)  # a, b, か twice, and 。 once
    assert {"中", "人"} <= set(pieces)  # of equal ones the first by code point
    assert {"国", "山", "##中"}.isdisjoint(pieces)
    assert {"a", "##b", "か", "##か", "。"} <= set(pieces)
    assert learn_vocabulary(counts, 19, max_cjk_characters=2)[14:] == ["ab", "国", "山", "[unused0]", "[unused1]"]
    assert learn_vocabulary(counts, 17, 2, max_cjk_characters=2)[7:9] == ["国", "[unused0]"]  # 山 is too rare
    assert learn_vocabulary(counts, 20, max_cjk_characters=4)[5:-7].count("山") == 1


def test_learner_knows_other_words_of_the_same_letters():
    tokenizer = WordPieceTokenizer(learn_vocabulary({"abc": 3, "d": 2, "!": 1}, 20))
    ids = tokenizer.encode("d cab bad dd !")
    assert tokenizer.unk_id not in ids


def test_learner_ignores_words_over_200_characters():
    assert learn_vocabulary({"x" * 201: 9, "a": 1}, 8)[5:] == ["a", "##a", "[unused0]"]
    assert learn_vocabulary({"x" * 200: 9}, 7)[5:] == ["x", "##x"]


def test_learner_refuses_a_size_without_room_for_the_characters():
    with pytest.raises(ValueError, match=r"5 special pieces and 14 characters.*size=18.*Try size=38") as caught:
        learn_vocabulary(HUGS, 18)
    assert "min_character_count" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(learn_vocabulary(HUGS, 19)) == 19


def test_learner_leaves_no_training_word_unknown():
    text = Path(__file__).read_text(encoding="utf-8")
    words = Counter(normalize_text(text, cased=False).split())
    tokenizer = WordPieceTokenizer(learn_vocabulary(words, 300))
    ids = tokenizer.encode(" ".join(words))
    assert tokenizer.unk_id not in ids
    assert tokenizer.decode(ids) == " ".join(words)


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("name", ["wiki_en_dev.txt", "wiki_zh.txt"])
def test_learner_leaves_no_word_of_real_text_unknown(name):
    lines = Path(DATA, "corpus", name).read_text(encoding="utf-8").split("\n")
    words = Counter(word for line in lines for word in normalize_text(line, cased=False).split())
    pieces = learn_vocabulary(words, 8000)
    tokenizer = WordPieceTokenizer(pieces)
    assert len(pieces) == len(set(pieces)) == 8000
    assert all(tokenizer.unk_id not in ids for ids in tokenizer.encode_batch(list(words)))


def read_words(name):
    with open(Path(DATA, "corpus", name), encoding="utf-8") as lines:
        return Counter(word for line in lines for word in normalize_text(line, cased=False).split())


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("size", [8000, 30522])
def test_learner_needs_fewer_tokens_for_unseen_text_than_merging(size):
    text = Path(DATA, "corpus", "wiki_en_train.txt")
    theirs = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    theirs.normalizer = normalizers.BertNormalizer(lowercase=True)
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = list(SPECIAL_PIECES)
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    theirs.train([str(text)], trainer)
    held_out = read_words("wiki_en_dev.txt")
    ours = count_tokens(learn_vocabulary(read_words(text.name), size), held_out)
    # Seen: 3 % fewer at 8,000 pieces, 0.8 % at 30,522. The trainer is not deterministic, but varies by far less.
    assert ours < 0.995 * count_tokens(sorted(theirs.get_vocab(), key=theirs.get_vocab().get), held_out)


LEARN_HALF_A_MILLION_WORDS = """
import numpy as np
from keras_bert_flow.text.learner import learn_vocabulary

rng = np.random.default_rng(0)
letters = np.array(list("etaoinshrdlcumwfgypbvkjxqz"))
weights = 1 / np.arange(1, 27)
words = {}
while len(words) < 500_000:
    for length, row in zip(rng.integers(3, 13, 10_000), rng.choice(letters, (10_000, 12), p=weights / weights.sum())):
        words.setdefault("".join(row[:length]), 3_000_000 // (len(words) + 1) + 1)
pieces = learn_vocabulary(words, 30522)
assert len(set(pieces)) == 30522
# Not resource's ru_maxrss: it begins with what the parent process had when it started this one.
print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""


@pytest.mark.slow
def test_learner_takes_half_a_million_words_in_two_gigabytes():
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LEARN_HALF_A_MILLION_WORDS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2 * 1024 * 1024  # kilobytes
