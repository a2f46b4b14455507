import os
import random
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from keras_bert_flow.text.tokenizers import normalization, wordpiece
from keras_bert_flow.text.tokenizers.normalization import clean_text
from keras_bert_flow.text.tokenizers.tokenizer import find_pieces
from keras_bert_flow.text.tokenizers.wordpiece import CHUNK, WordPieceTokenizer
from tests.oracles.piece_offsets import traced_pieces

DATA = os.environ.get("KBF_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    *SPECIAL,
    "un",
    "##aff",
    "##able",
    "cafe",
    "##s",
    "i",
    "##i",
    "##e",
    ",",
    "中",
    "σας",
    "ᄒ",
    "##ᅡᆫ",
    "ß",
    "İ",
    "Café",
]
PUBLISHED = {
    "uncased": "uncased_L-12_H-768_A-12",
    "cased": "cased_L-12_H-768_A-12",
    "chinese": "chinese_L-12_H-768_A-12",
}
# What normalisation drops, folds, splits or joins, besides plain letters.
ODD = [*"aBe ,.$ 1İıßẞΣσςﬁéÀñø中国龘ー한ㅎ😀👩", "\u0301", "\u0327", "\u0308", "\u200b", "\u200d", "\u00ad", "\ufeff"]
ODD += ["\0", "\ufffd", "\x07", "\x0b", "\x0c", "\x1c", "\x1f", "\x85", "\xa0", "\t", "\n", "\r", "\u2028", "\u3000"]
ODD += ["\U0002f800", "\u2126", "\u212a", "\ufe0f", "\U0001f3fd", "\u0340", "\u1fef", "\u0345", "\U00010400"]


def make_published(name):
    return WordPieceTokenizer.from_file(Path(DATA, "vocab", f"{PUBLISHED[name]}.vocab.txt"), cased=name == "cased")


def shown(text, cased=False):
    """Return the pieces of a text with what each was made of."""
    tokenizer = WordPieceTokenizer(PIECES, cased)
    ids, starts, ends = tokenizer.encode_with_offsets(text)
    assert ids.tolist() == tokenizer.encode(text).tolist()
    assert {part.dtype for part in (ids, starts, ends)} == {np.dtype(np.int32)}
    return [(PIECES[i], text[start:end]) for i, start, end in zip(ids, starts, ends, strict=True)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        (" \u200b\n\u0301\0", []),
        (
            "  Unaffable, UNS",
            [("un", "Un"), ("##aff", "aff"), ("##able", "able"), (",", ","), ("un", "UN"), ("##s", "S")],
        ),
        ("Cafés", [("cafe", "Café"), ("##s", "s")]),
        ("Cafe\u0301s", [("cafe", "Cafe\u0301"), ("##s", "s")]),  # the accent is a character of its own
        ("cafe\u200d\u0301\u0327 s", [("cafe", "cafe\u200d\u0301\u0327"), ("[UNK]", "s")]),
        ("\u0301cafe", [("cafe", "cafe")]),
        ("ca\u00adfe\u200b,", [("cafe", "ca\u00adfe"), (",", ",")]),  # dropped: inside a piece, and between two
        ("un\x0b\u200baff\0able\ufffd", [("un", "un"), ("##aff", "aff"), ("##able", "able")]),
        ("İi", [("i", "İ"), ("##i", "i")]),
        ("unİ", [("un", "un"), ("##i", "İ")]),
        ("ﬁ xyz", [("[UNK]", "ﬁ"), ("[UNK]", "xyz")]),  # NFD leaves ligatures alone
        ("ΣΑΣ", [("σας", "ΣΑΣ")]),  # the last sigma is another one because of those before it
        ("un中,s\u3000un", [("un", "un"), ("中", "中"), (",", ","), ("[UNK]", "s"), ("un", "un")]),
        ("한", [("ᄒ", "한"), ("##ᅡᆫ", "한")]),  # one syllable gives three letters, two pieces
        ("😀 un👩\u200d👩", [("[UNK]", "😀"), ("[UNK]", "un👩\u200d👩")]),
        ("xé,un", [("[UNK]", "xé"), (",", ","), ("un", "un")]),
        ("un\ud800 ,", [("un", "un"), (",", ",")]),
    ],
)
def test_pieces_stand_where_they_came_from(text, expected):
    assert shown(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Café uns", [("Café", "Café"), ("un", "un"), ("##s", "s")]),
        ("İ Un", [("İ", "İ"), ("[UNK]", "Un")]),
        ("uni\u0301 ,", [("[UNK]", "uni\u0301"), (",", ",")]),  # accents stay
    ],
)
def test_pieces_of_cased_text_stand_where_they_came_from(text, expected):
    assert shown(text, cased=True) == expected


def test_chunks_are_what_cleaning_leaves_between_spaces():
    for character in map(chr, range(0x110000)):
        is_space = clean_text(character).isspace()
        assert bool(CHUNK.match(character)) != is_space, ascii(character)


def test_offsets_are_the_same_when_nothing_is_remembered(monkeypatch):
    text = "unaffable café unaffable, 中 xyz, " * 3
    expected = shown(text)
    monkeypatch.setattr(wordpiece, "MAX_REMEMBERED_WORDS", 1)
    monkeypatch.setattr(normalization, "MAX_REMEMBERED_CHARACTERS", 5)
    tokenizer = WordPieceTokenizer(PIECES)
    ids, starts, ends = tokenizer.encode_with_offsets(text)
    assert [(PIECES[i], text[start:end]) for i, start, end in zip(ids, starts, ends, strict=True)] == expected
    assert list(tokenizer._spans) == ["café"]


@pytest.mark.parametrize(
    ("start", "end", "pieces"),
    [(0, 2, (0, 0)), (1, 3, (0, 1)), (2, 3, (1, 1)), (0, 9, (0, 2)), (5, 6, None), (6, 9, (2, 2)), (9, 9, None)],
)
def test_find_pieces_takes_every_piece_that_the_span_touches(start, end, pieces):
    starts, ends = np.array([0, 2, 6]), np.array([2, 5, 9])
    assert find_pieces(starts, ends, start, end) == pieces


def assert_equals_the_oracle(tokenizer, vocabulary, text):
    ids, starts, ends = tokenizer.encode_with_offsets(text)
    found = list(zip([tokenizer.pieces[i] for i in ids], starts.tolist(), ends.tolist(), strict=True))
    assert found == traced_pieces(text, vocabulary, tokenizer.cased), ascii(text)
    assert ids.tolist() == tokenizer.encode(text).tolist()


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("name", PUBLISHED)
def test_offsets_equal_the_oracle_on_odd_texts(name):
    tokenizer, rng = make_published(name), random.Random(3)
    vocabulary = set(tokenizer.pieces)
    for _ in range(3000):
        marks = rng.random() < 0.5  # a syllable of Hangul with an accent is nothing anybody writes
        alphabet = [c for c in ODD if c != "한" or not marks]
        alphabet = alphabet if marks else [c for c in alphabet if unicodedata.category(c) != "Mn"]
        assert_equals_the_oracle(tokenizer, vocabulary, "".join(rng.choices(alphabet, k=rng.randrange(1, 12))))


@pytest.mark.first_form
@needs_data
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("uncased", "corpus/bert_sample_text.txt"),
        ("uncased", "corpus/wiki_en_dev.txt"),  # the contexts of SQuAD 1.1 dev
        ("cased", "corpus/wiki_en_dev.txt"),
        ("chinese", "corpus/wiki_zh.txt"),
        ("uncased", "corpus/wiki_zh.txt"),
        ("cased", "conll2002_ned/testa.txt"),
    ],
)
@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_offsets_equal_the_oracle_on_real_text(name, file, step):
    tokenizer = make_published(name)
    vocabulary = set(tokenizer.pieces)
    lines = Path(DATA, file).read_text(encoding="utf-8").split("\n")
    if file.startswith("conll"):
        lines = [" ".join(line.split(" ")[0] for line in lines[at : at + 40]) for at in range(0, len(lines), 40)]
    lines = lines[::step]
    for line in lines[::7]:
        assert_equals_the_oracle(tokenizer, vocabulary, line)
    for line in lines:
        ids, starts, ends = tokenizer.encode_with_offsets(line)
        assert ids.tolist() == tokenizer.encode(line).tolist()
        assert (starts < ends).all() and (np.diff(starts) >= 0).all() and (np.diff(ends) >= 0).all()


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize("name", ["uncased", pytest.param("cased", marks=pytest.mark.slow)])
@pytest.mark.first_form
def test_ids_are_those_of_the_tokenizer_for_every_kind_of_character(name):
    """Put characters of every kind, also marks that NFD puts into another order, behind each other."""
    tokenizer, rng = make_published(name), random.Random(5)
    large = ("Co", "Cn", "Lo", "So")
    codes = [code for code in range(0x110000) if code % 101 == 0 or unicodedata.category(chr(code)) not in large]
    marks = [code for code in codes if unicodedata.combining(chr(code))]
    assert any(unicodedata.category(chr(code)) != "Mn" for code in marks)
    for code in codes:
        text = (
            f"un{chr(code)}Able {chr(rng.choice(marks))}{chr(code)}{chr(rng.choice(marks))},{chr(rng.choice(codes))}e"
        )
        ids, starts, ends = tokenizer.encode_with_offsets(text)
        assert ids.tolist() == tokenizer.encode(text).tolist(), ascii(text)
        assert (starts < ends).all() and (np.diff(starts) >= 0).all() and (np.diff(ends) >= 0).all(), ascii(text)
