import os
import random
from pathlib import Path

import pytest

from keras_bert_flow.tasks.formats.tagged_words import split_words

DATA = os.environ.get("KBF_TEST_DATA")
ALPHABET = "aB1é\u0301 \t\n\u00a0\u3000.,:-'’/&@_()!?…«»。、你好\u200b\x00€😀"


def check_nothing_is_lost(text: str) -> None:
    words, end = split_words(text), 0
    for word in words:
        assert word.text and text[word.start : word.end] == word.text
        assert not any(character.isspace() for character in word.text)
        assert word.start >= end and not text[end : word.start].strip()
        end = word.end
    assert not text[end:].strip()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Jan  woont in\tBrussel.", "Jan woont in Brussel ."),
        ("Jean-Pierre d'Ardenne (AT&T)", "Jean-Pierre d'Ardenne ( AT&T )"),
        ("3.5 of 1,000 om 12:30, en/of", "3.5 of 1,000 om 12:30 , en/of"),
        ("Jan,Piet:Klaas", "Jan , Piet : Klaas"),
        ("wacht...nee--toch", "wacht . . . nee - - toch"),
        ("'s-Hertogenbosch U.S.", "' s-Hertogenbosch U.S ."),
        ("«Hé!»", "« Hé ! »"),
        ("他住在北京。a北b", "他 住 在 北 京 。 a 北 b"),
        ("€5 30° C++", "€5 30° C + +"),
        ("  \n", ""),
        ("", ""),
    ],
)
def test_words_are_split_as_tables_have_them(text, words):
    assert [word.text for word in split_words(text)] == words.split()
    check_nothing_is_lost(text)


def test_nothing_but_blanks_is_lost_of_any_text():
    rng = random.Random(5)
    for _ in range(3000):
        check_nothing_is_lost("".join(rng.choices(ALPHABET, k=rng.randint(0, 25))))


@pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")
@pytest.mark.parametrize("name", ["wiki_en_dev.txt", "wiki_zh.txt"])
def test_nothing_but_blanks_is_lost_of_real_text(name):
    lines = (Path(DATA) / "corpus" / name).read_text(encoding="utf-8").splitlines()
    assert len(lines) > 1000
    for line in lines[:1000]:
        check_nothing_is_lost(line)
