"""Byte-level BPE of counted words is what `tokenizers` learns from the text, and is read by transformers."""

import json
from collections import Counter

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from keras_bert_flow.config.text import VocabularyConfig
from keras_bert_flow.text.tokenizers import bpe
from keras_bert_flow.text.tokenizers.bpe import BytePieces, learn_bpe
from keras_bert_flow.text.tokenizers.files import read_tokenizer_file
from keras_bert_flow.text.tokenizers.learning import choose_words, learn_tokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES

TEXTS = [
    "The film's plot isn't new, but the films of 1999 weren't either.",
    "Der Film, über den alle reden: schön! Cafe\u0301 au lait, 1999 mal.",
    "電影很好看。ภาพยนตร์ 🎬 the  end\tof\u00a0it",
] * 3


def count(texts, cased):
    words = BytePieces(cased)
    return Counter(word for text in texts for part in words.split(text) for word in words(part))


def learn_from_text(texts, size, cased):
    words, learner = BytePieces(cased), tokenizers.Tokenizer(models.BPE())
    learner.normalizer, learner.pre_tokenizer = words.normalizer, words.pre_tokenizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, special_tokens=[*SPECIAL_PIECES], initial_alphabet=alphabet
    )
    learner.train_from_iterator(texts, trainer)
    return json.loads(learner.to_str())["model"]


@pytest.mark.parametrize("cased", [True, False])
def test_merges_are_those_that_tokenizers_learns_from_the_text(cased, tmp_path):
    texts = [" ".join(text.split()) for text in TEXTS]  # of several spaces each is a word of its own
    learned, expected = learn_bpe(count(texts, cased), 330, cased), learn_from_text(texts, 330, cased)
    learned.write(tmp_path)
    model = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    assert model["merges"] == expected["merges"]
    assert model["vocab"] == expected["vocab"] and len(model["vocab"]) == 330


def test_order_of_the_counts_does_not_matter_and_any_text_comes_back():
    counts = count(TEXTS, True)
    tokenizer = learn_bpe(counts, 330, True)
    again = learn_bpe(dict(reversed([*counts.items()])), 330, True)
    assert again.describe() == tokenizer.describe()
    text = "Ünseen: \u6f22\u5b57, 12,5 % & Code_x = {y}"
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids).strip() == text and tokenizer.unk_id not in ids
    starts = [tokenizer.pieces[i] for i in ids if tokenizer.starts_word[i]]
    assert len(starts) == len(text.split()) and all(piece.startswith("Ġ") for piece in starts)


def test_transformers_gives_the_same_ids(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = learn_bpe(count(TEXTS, True), 330, True)
    tokenizer.write(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS[:3]:
        assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text).tolist()
    joined = theirs("the film", "the end")["input_ids"]
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    assert joined == [cls, *tokenizer.encode("the film"), sep, *tokenizer.encode("the end"), sep]
    assert theirs.mask_token_id == tokenizer.mask_id and theirs.pad_token_id == 0


def test_missing_pairs_are_filled_up():
    tokenizer = learn_bpe({"Ġab": 2, "Ġcd": 1}, 300, True)
    assert tokenizer.vocabulary_size == 300
    assert tokenizer.pieces[261:264] == ("ab", "Ġab", "[unused0]") and tokenizer.pieces[-1] == "[unused36]"


def test_more_words_than_the_trainer_takes_are_counted_in_proportion(monkeypatch):
    monkeypatch.setattr(bpe, "MAX_TRAINED_WORDS", 100)
    monkeypatch.setattr(bpe, "_REPEATED", 7)
    fed = Counter(word for text in bpe._repeat({"a": 600, "b": 396, "c": 4}) for word in text.split())
    assert fed == {"a": 60, "b": 40}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 260}, "at least 261 with `kind: bpe`.*Received: size=260"),
        ({"min_character_count": 3}, "`min_character_count` must go with `kind: wordpiece`.*min_character_count=3"),
        ({"long_words": "characters"}, "`long_words` must go with `kind: wordpiece`"),
    ],
)
def test_settings_of_word_piece_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        VocabularyConfig(kind="bpe", **settings)


def test_case_is_kept_unless_it_is_said(tmp_path):
    assert VocabularyConfig(kind="bpe").cased and not VocabularyConfig().cased
    vocabulary = VocabularyConfig(kind="bpe", cased=False, size=300)
    words = choose_words(vocabulary)
    learn_tokenizer(Counter(words("The THE ÄB the")), vocabulary).write(tmp_path)
    tokenizer = read_tokenizer_file(tmp_path / "tokenizer.json")
    assert tokenizer.encode("THE äb").tolist() == tokenizer.encode("the ÄB").tolist()
    with pytest.raises(ValueError, match="room for 5 special pieces and 256 bytes. Received: 100"):
        learn_bpe({"a": 1}, 100, True)
