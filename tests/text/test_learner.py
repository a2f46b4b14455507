import os
import random
import string
from collections import Counter
from pathlib import Path

import pytest

from keras_bert_flow.text.learner import learn_vocabulary
from keras_bert_flow.text.normalization import normalize_text
from keras_bert_flow.text.tokenizer import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES

DATA = os.environ.get("KBF_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")

HUGS = {"hug": 10, "pug": 5, "pun": 12, "bun": 4, "hugs": 5}
HUGS_CHARACTERS = ["b", "h", "p", "##g", "##n", "##s", "##u"]
# By hand: ug 20, un 16, h+ug 15, p+un 12, then hug+s 5 before p+ug 5 by string order, b+un 4.
HUGS_MERGED = ["##ug", "##un", "hug", "pun", "hugs", "pug", "bun"]


def learn_slowly(word_counts, size):
    """Recount all pairs before every merge."""
    words = {word: [word[0], *("##" + c for c in word[1:])] for word in word_counts}
    pieces = [*SPECIAL_PIECES, *sorted({p for w in words.values() for p in w}, key=lambda p: (len(p), p))]
    while len(pieces) < size:
        counts = Counter()
        for word, parts in words.items():
            for pair in zip(parts, parts[1:], strict=False):
                counts[pair] += word_counts[word]
        if not counts:
            return pieces + [f"[unused{i}]" for i in range(size - len(pieces))]
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merged = best[0] + best[1][2:]
        if merged not in pieces:
            pieces.append(merged)
        for parts in words.values():
            for i in range(len(parts)):
                if tuple(parts[i : i + 2]) == best:
                    parts[i : i + 2] = [merged]
    return pieces


def make_counts(seed, words=60, alphabet="abc", longest=9):
    rng = random.Random(seed)
    return {"".join(rng.choices(alphabet, k=rng.randint(1, longest))): rng.randint(1, 6) for _ in range(words)}


@pytest.mark.parametrize("merges", range(8))
def test_learner_merges_as_by_hand(merges):
    pieces = learn_vocabulary(HUGS, 12 + merges)
    assert pieces == [*SPECIAL_PIECES, *HUGS_CHARACTERS, *HUGS_MERGED[:merges]]


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("alphabet", ["ab", "abcdé"])
def test_learner_equals_recounting_every_time(seed, alphabet):
    counts = make_counts(seed, alphabet=alphabet)
    assert learn_vocabulary(counts, 90) == learn_slowly(counts, 90)


def test_learner_fills_with_unused_when_nothing_is_left():
    pieces = learn_vocabulary(HUGS, 22)
    assert pieces[19:] == ["[unused0]", "[unused1]", "[unused2]"]
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
    assert learn_vocabulary({"ba": 1, "ab": 1, "ac": 1}, 13)[10:] == ["ab", "ac", "ba"]


def test_learner_leaves_out_rare_characters():
    counts = {"ab": 5, "az": 1, "zzy": 1, "ca": 2}
    pieces = learn_vocabulary(counts, 13, min_character_count=2)  # z occurs 3 times, y once, so `zzy` is left out
    assert pieces[5:] == ["a", "c", "##a", "##b", "##z", "ab", "ca", "az"]
    assert "##z" not in learn_vocabulary(counts, 13, min_character_count=4)


def test_learner_ignores_words_over_200_characters():
    assert learn_vocabulary({"x" * 201: 9, "a": 1}, 7)[5:] == ["a", "[unused0]"]
    assert learn_vocabulary({"x" * 200: 9}, 7)[5:] == ["x", "##x"]


def test_learner_refuses_a_size_without_room_for_the_characters():
    with pytest.raises(ValueError, match=r"5 special pieces and 7 characters.*size=11.*Try size=24") as caught:
        learn_vocabulary(HUGS, 11)
    assert "min_character_count" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(learn_vocabulary(HUGS, 12)) == 12


def test_learner_leaves_no_training_word_unknown():
    text = Path(__file__).read_text(encoding="utf-8")
    words = Counter(normalize_text(text, cased=False).split())
    tokenizer = WordPieceTokenizer(learn_vocabulary(words, 300))
    ids = tokenizer.encode(" ".join(words))
    assert tokenizer.unk_id not in ids
    assert tokenizer.decode(ids) == " ".join(words)


@needs_data
@pytest.mark.parametrize("name", ["wiki_en_dev.txt", "wiki_zh.txt"])
def test_learner_leaves_no_word_of_real_text_unknown(name):
    lines = Path(DATA, "corpus", name).read_text(encoding="utf-8").split("\n")
    words = Counter(word for line in lines for word in normalize_text(line, cased=False).split())
    pieces = learn_vocabulary(words, 8000)
    tokenizer = WordPieceTokenizer(pieces)
    assert len(pieces) == len(set(pieces)) == 8000
    assert all(tokenizer.unk_id not in ids for ids in tokenizer.encode_batch(list(words)))
