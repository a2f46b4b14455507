"""Turn raw text into words: cleaned, spaced, folded, the same for counting a vocabulary and for encoding with it."""

import unicodedata

# google-research/bert `_is_chinese_char`: Han only, since Hangul, hiragana and katakana are written with other habits.
HAN_RANGES = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def normalize_text(text: str, cased: bool) -> str:
    """Return the words of a text, separated by single spaces.

    In effect the `BasicTokenizer` of google-research/bert: drop NUL, U+FFFD, controls and format characters; split at
    whitespace; set every Han character and punctuation mark apart; unless `cased`, lower-case and drop accents.
    Unicode properties are those of the Python that runs. Two things differ in form, not in result. The original folds
    word by word, here the whole text is folded at once: neither lower-casing nor NFD looks past whitespace. And it
    spaces Han before folding, here after: nothing else folds into Han. One thing differs: lone surrogates, which no
    UTF-8 file can hold, are dropped, where the original lets them make the word unknown.
    Source: google-research/bert, tokenization.py, `BasicTokenizer`.
    """
    text = clean_text(text)
    if not cased:
        text = text.lower()
        if not text.isascii():
            text = unicodedata.normalize("NFD", text)
    return " ".join(text.translate(_SPACED_CASED if cased else _SPACED).split())


def clean_text(text: str) -> str:
    """Drop NUL, U+FFFD, controls, format characters and lone surrogates; tabs and line ends become spaces."""
    if text.isprintable() and "\ufffd" not in text:  # a cheap test: nothing to drop in most texts
        return text
    return text.translate(_CLEANED)


class _CharacterTable(dict):
    """A table for `str.translate` that classifies a character when it is first met."""

    def __init__(self, replace):
        super().__init__()
        self._replace = replace

    def __missing__(self, code: int) -> str:
        self[code] = replacement = self._replace(chr(code))
        return replacement


def _clean(character: str) -> str:
    if character in "\t\n\r":
        return " "
    dropped = character in "\0\ufffd" or unicodedata.category(character) in ("Cc", "Cf", "Cs")
    return "" if dropped else character


def _space(character: str) -> str:
    return f" {character} " if is_punctuation(character) or is_han(character) else character


def _space_and_strip_accents(character: str) -> str:
    return "" if unicodedata.category(character) == "Mn" else _space(character)


def is_punctuation(character: str) -> bool:
    """Tell whether a character is a punctuation mark, which is always a word of its own."""
    # Symbols such as $ + < ^ count as punctuation in ASCII only: google-research/bert `_is_punctuation`.
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")


def is_han(character: str) -> bool:
    """Tell whether a character is a Han ideograph, which is always a word of its own."""
    return any(first <= ord(character) <= last for first, last in HAN_RANGES)


_CLEANED = _CharacterTable(_clean)
_SPACED_CASED = _CharacterTable(_space)
_SPACED = _CharacterTable(_space_and_strip_accents)
