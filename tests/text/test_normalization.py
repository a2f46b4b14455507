import os
import unicodedata
from pathlib import Path

import pytest

from keras_bert_flow.text.normalization import HAN_RANGES, normalize_text
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
