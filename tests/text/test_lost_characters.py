"""Characters that a tokenizer loses are counted in the text as it was written."""

import unicodedata

import pytest

from keras_bert_flow.text.tokenizers.normalization import normalize_text
from keras_bert_flow.text.tokenizers.tokenizer import count_lost, count_stripped, describe_lost
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES

PIECES = [*SPECIAL_PIECES, *"abcไทย", *(f"##{letter}" for letter in "abcไทย")]


@pytest.mark.parametrize(
    ("text", "stripped"),
    [
        ("möchte größer naïve Ελλάδα ёлка", 0),
        ("\u2764\ufe0f o\u0308", 0),  # how an emoji looks, and an accent of its own
        ("ที่นี่", 4),
        ("हिन्दी", 1),
        ("がカﾞ", 1),  # the mark of half width is a letter
        ("が", 1),  # か and its mark
        ("tiến sĩ ở Việt Nam", 2),  # horn or hook, and the dot
        ("мой", 1),
        ("ကျွန်ုပ်", 4),
        ("\U00011103\U00011127", 1),  # Chakma, beyond 16 bits
    ],
)
def test_marks_that_are_part_of_a_letter_are_told_from_accents(text, stripped):
    assert count_stripped(text) == stripped
    marks = [mark for mark in unicodedata.normalize("NFD", text) if unicodedata.category(mark) == "Mn"]
    assert stripped <= len(marks)
    assert len(normalize_text(text, cased=True).split()) == len(normalize_text(text, cased=False).split())


def test_unknown_characters_are_those_of_the_text():
    tokenizer = WordPieceTokenizer(PIECES, cased=True)
    text = f"abc xyz a{'b' * 200} ไทย 漢字!"
    expected = {"characters": 3 + 3 + 201 + 3 + 3, "unknown_characters": 3 + 201 + 3, "long_word_characters": 201}
    assert count_lost(tokenizer, text) == expected
    assert count_lost(tokenizer, "abc ไทย") == {"characters": 6}
    korean = count_lost(WordPieceTokenizer(PIECES), "한국어")  # folded to eight letters, counted as written
    assert korean == {"characters": 3, "stripped_characters": 0, "unknown_characters": 3, "long_word_characters": 0}


def test_a_loss_is_described_with_what_prevents_it():
    assert describe_lost({"characters": 10_000, "unknown_characters": 9, "stripped_characters": 9}, "x") == []
    (long,) = describe_lost({"characters": 100, "unknown_characters": 9, "long_word_characters": 9}, "the corpus")
    assert long.startswith("9.00 % of the characters of the corpus become [UNK]. They are in words of over 200")
    assert "pythainlp" in long and "kbf vocab" not in long
    (rare,) = describe_lost({"characters": 100, "unknown_characters": 9}, "the corpus")
    assert "kbf vocab" in rare
    (marks,) = describe_lost({"characters": 100, "stripped_characters": 30}, "the corpus")
    assert marks.startswith("30.00 %") and "vocabulary.cased: true" in marks
