"""Split raw text into words with offsets, as in tables of tagged words."""

import re
from typing import NamedTuple

from keras_bert_flow.text.tokenizers.normalization import is_han, is_punctuation

JOINERS = frozenset("-\u2010\u2011'\u2019.&/@_\u00b7")  # between two letters or digits they do not split a word
JOINERS_OF_DIGITS = frozenset(",:")  # 1,000 and 12:30


class Word(NamedTuple):
    """A word of a text: `text[start:end]`."""

    text: str
    start: int
    end: int


def split_words(text: str) -> list[Word]:
    """Split text at blanks, Han characters and punctuation marks; only blanks are dropped.

    A mark within a word, as in Jean-Pierre, U.S or 3.5, does not split it, as in tables of tagged words: their labels
    are on first pieces, so a model has not learnt to tag what follows such a mark.

    Returns:
        The words, in order; `text[word.start:word.end] == word.text`, with only blanks between them.
    """
    words = []
    for chunk in re.finditer(r"\S+", text):
        characters, start = chunk.group(), chunk.start()
        if characters.isalnum() and characters.isascii():  # most words
            words.append(Word(characters, start, chunk.end()))
            continue
        borders = [place for place in range(1, len(characters)) if _parts(characters, place)]
        for first, end in zip([0, *borders], [*borders, len(characters)], strict=True):
            words.append(Word(characters[first:end], start + first, start + end))
    return words


def _parts(characters: str, place: int) -> bool:
    """Return whether a word ends before the character at `place`."""
    return _stands_alone(characters, place - 1) or _stands_alone(characters, place)


def _stands_alone(characters: str, place: int) -> bool:
    character = characters[place]
    if is_han(character):
        return True
    return is_punctuation(character) and not _joins(characters, place)


def _joins(characters: str, place: int) -> bool:
    if not 0 < place < len(characters) - 1:
        return False
    before, character, after = characters[place - 1], characters[place], characters[place + 1]
    if character in JOINERS_OF_DIGITS:
        return before.isdigit() and after.isdigit()
    return character in JOINERS and not any(is_punctuation(side) or is_han(side) for side in (before, after))
