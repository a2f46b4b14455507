import os
import random
import time
import unicodedata
from pathlib import Path

import pytest

from keras_bert_flow.text.corpus.documents import make_document
from keras_bert_flow.text.tokenizers import normalization
from keras_bert_flow.text.tokenizers.normalization import HAN_RANGES, Remembered, decompose, normalize_text
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from tests.oracles.google_tokenizer import google_words

DATA = os.environ.get("KBF_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")
both_cases = pytest.mark.parametrize("cased", [False, True])


def find_differences(codes, cased):
    """Try each character inside a word, alone, at a final sigma and before Han; return those that differ."""
    different = []
    for code in codes:
        c = chr(code)
        text = f"A{c}b {c} Σ{c} AΣ{c}Ӂ {c}̈中"
        if normalize_text(text, cased).split(" ") != google_words(text, cased):
            different.append(hex(code))
    return different


@pytest.mark.first_form
@both_cases
def test_normalization_equals_the_original_on_every_kind_of_character(cased):
    kinds = {code: unicodedata.category(chr(code)) for code in range(0x110000)}
    # All but the large kinds (unassigned, private, letters without case, symbols); of those one in 101.
    chosen = [code for code, kind in kinds.items() if kind not in ("Cn", "Co", "Cs", "Lo", "So") or code % 101 == 0]
    edges = {code + side for pair in HAN_RANGES for code in pair for side in (-1, 0, 1)}
    chosen = [code for code in {*chosen, *edges} if kinds[code] != "Cs"]
    assert {kinds[code] for code in chosen} == set(kinds.values()) - {"Cs"}
    assert find_differences(chosen, cased) == []


@pytest.mark.slow
@both_cases
def test_normalization_equals_the_original_on_every_code_point(cased):
    assert find_differences((code for code in range(0x110000) if not 0xD800 <= code < 0xE000), cased) == []


@needs_data
@both_cases
@pytest.mark.parametrize("name", ["wiki_zh.txt", "bert_sample_text.txt", "wiki_en_dev.txt"])
@pytest.mark.parametrize("count", [300, pytest.param(1500, marks=pytest.mark.slow)])
def test_normalization_equals_the_original_on_real_text(name, cased, count):
    lines = Path(DATA, "corpus", name).read_text(encoding="utf-8").split("\n")[:count]
    for line in lines:
        assert normalize_text(line, cased).split() == google_words(line, cased)


@pytest.mark.parametrize(
    ("text", "uncased", "cased"),
    [
        ("Hello, World!", "hello , world !", "Hello , World !"),
        ("  \tone\n\ntwo\r", "one two", "one two"),
        ("", "", ""),
        ("naïve Ångström", "naive angstrom", "naïve Ångström"),
        ("nai\u0308ve", "naive", "nai\u0308ve"),
        ("\u0308", "", "\u0308"),
        ("ΟΔΥΣΣΕΥΣ ΣΑΣ.", "οδυσσευς σας .", "ΟΔΥΣΣΕΥΣ ΣΑΣ ."),
        ("İstanbul", "istanbul", "İstanbul"),
        ("a中文b", "a 中 文 b", "a 中 文 b"),
        ("か\u3099", "か", "か\u3099"),
        ("co\u00adop\u200bt\u0000\ufffd", "coopt", "coopt"),
        ("a\ufffdb", "ab", "ab"),
        ("a\u2028b\u00a0c\u3000d", "a b c d", "a b c d"),
        ("$1+1=2\u20ac", "$ 1 + 1 = 2\u20ac", "$ 1 + 1 = 2\u20ac"),
        ("[MASK] can't", "[ mask ] can ' t", "[ MASK ] can ' t"),
        ("\u1fef", "`", "\u1fef"),
        ("\ud800x", "x", "x"),
    ],
)
def test_normalization_follows_the_rules(text, uncased, cased):
    assert normalize_text(text, cased=False) == uncased
    assert normalize_text(text, cased=True) == cased


@both_cases
def test_normalization_changes_nothing_the_second_time(cased):
    once = normalize_text("Éa, ΣΑΣ 中文 don't\u2014stop\u3000(x) İ", cased)
    assert normalize_text(once, cased) == once


MARKS = [chr(code) for code in range(0x110000) if unicodedata.combining(chr(code))]
KEPT_MARKS = [mark for mark in MARKS if unicodedata.category(mark) != "Mn"]  # not stripped, so that their order shows
OTHERS = ["a", "É", "ệ", "각", "\u1100", "\u1161", "\u0344", "\u034f", "\U0001d15e", "\ufb2c", "中", "!", "Σ", " "]


def make_marked_texts(count, seed=0):
    """Yield runs of marks of mixed classes, with and without what they stand on."""
    rng = random.Random(seed)
    for _ in range(count):
        pool = rng.choice([MARKS, KEPT_MARKS * 5 + MARKS[:50], MARKS + OTHERS * 20, KEPT_MARKS + OTHERS])
        yield "".join(rng.choices(pool, k=rng.randint(1, 40)))


def test_decomposition_equals_that_of_unicodedata():
    assert {unicodedata.combining(mark) for mark in KEPT_MARKS} >= {6, 216, 224, 226}
    for text in make_marked_texts(1500):
        assert decompose(text) == unicodedata.normalize("NFD", text), ascii(text)


def test_normalization_equals_the_original_on_runs_of_marks():
    for text in make_marked_texts(600, seed=1):
        assert normalize_text(text, cased=False).split() == google_words(text, cased=False), ascii(text)


def test_tables_of_characters_are_bounded(monkeypatch):
    text = "".join(map(chr, range(0x300, 0x800)))
    expected = [normalize_text(text, cased) for cased in (False, True)]
    monkeypatch.setattr(normalization, "_CLEANED", Remembered(normalization._CLEANED._find, 100))
    for name in ("_FOLDED", "_STRIPPED", "_SPACED"):
        tables = getattr(normalization, name)
        fresh = {split_han: Remembered(table._find, 100) for split_han, table in tables.items()}
        monkeypatch.setattr(normalization, name, fresh)
    assert [normalize_text(text, cased) for cased in (False, True)] == expected
    assert len(normalization._FOLDED[True]) == len(normalization._SPACED[True]) == 100


HOSTILE = {
    "marks of mixed classes": lambda count: "".join(
        random.Random(0).choices("\u0301\u0327\u0345\u0316\u0334", k=count)
    ),
    "marks in turn": lambda count: "a" + "\u0301\u0316" * (count // 2),
    "marks that are kept": lambda count: "\u302e\U0001d165\u0301" * (count // 3),
    "notes": lambda count: "\U0001d15e\u0301" * (count // 2),
    "Hangul": lambda count: "각" * count,
    "Han": lambda count: "中" * count,
    "one letter": lambda count: "é" * count,
    "capital sigmas": lambda count: "Σ'\u0301" * (count // 3),
    "punctuation": lambda count: "!" * count,
    "full stops": lambda count: "Dr. A. " * (count // 7),
    "a stop and spaces": lambda count: "A." + " " * count + "B",
    "quotes": lambda count: '. ("' * (count // 4),
    "controls": lambda count: "\x1c\x01" * (count // 2),
}


def cost(function, *arguments):
    """Return the processor time of a call, the smaller of two, seconds."""
    times = []
    for _ in range(2):
        started = time.process_time()
        function(*arguments)
        times.append(time.process_time() - started)
    return min(times)


def count_words_of_line(text):
    normalize_text(text, cased=False)


def encode_line(text):
    WordPieceTokenizer([*SPECIAL_PIECES, "a", "##a"]).encode_with_offsets(text)


def split_line(text):
    make_document([text], split_lines=True)


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("function", [count_words_of_line, encode_line, split_line])
def test_hostile_lines_take_linear_time(function, make):
    count = 5000
    # A quadratic function takes 64 times as long: of marks, unicodedata's NFD 25 ms and 1.6 s.
    assert cost(function, make(8 * count)) < 24 * cost(function, make(count)) + 0.1
