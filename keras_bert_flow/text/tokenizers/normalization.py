"""Text normalisation: clean, split and fold text into words, for both vocabulary learning and encoding."""

import unicodedata
from collections.abc import Callable
from functools import partial
from itertools import groupby
from typing import Any

# google-research/bert `_is_chinese_char`: Han only, since Hangul, hiragana and katakana are written differently.
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
MAX_REMEMBERED_CODES = 1 << 16  # per table, about 10 MB; text in all the scripts of the world has fewer
MAX_REMEMBERED_WORDS = 20_000  # per cache; about 8 MB together, and most of the words of a text
MAX_REMEMBERED_CHARACTERS = 50  # longer ones, such as a Chinese sentence, hardly ever repeat


def normalize_text(text: str, cased: bool, strip_accents: bool | None = None, split_han: bool = True) -> str:
    """Return the words of a text, separated by single spaces.

    The last two arguments are BERT's `strip_accents` and `tokenize_chinese_chars`, of which `transformers` took the
    form: accents are dropped unless `cased`, or as `strip_accents` says; without `split_han` a Han character is an
    ordinary letter.

    Equivalent to `BasicTokenizer` of google-research/bert: drop NUL, U+FFFD, control and format characters; split at
    whitespace; separate every Han character and punctuation mark; unless `cased`, lower-case and drop accents.
    Unicode properties are those of the running Python. Three steps differ in form, not in result. The original folds
    word by word, here the whole text is folded at once: neither lower-casing nor NFD looks past whitespace. It
    separates Han before folding, here after: nothing else folds into Han. And it puts the marks of a letter in
    canonical order before it drops most of them; here only if marks are left whose order matters, since `unicodedata`
    takes time quadratic in the length of a run of marks. One result differs: lone surrogates, which no UTF-8 file can
    contain, are dropped, while in the original they make the word unknown.

    Source: google-research/bert, tokenization.py, `BasicTokenizer`.
    Example:
        >>> kbf.normalize_text("Ça va, 東京?", cased=False)
        'ca va , 東 京 ?'
    """
    text = clean_text(text)
    text = text if cased else text.lower()
    strip_accents = not cased if strip_accents is None else strip_accents
    if not strip_accents:
        return " ".join(text.translate(_SPACED[split_han]).split())
    folded = text.translate(_FOLDED[split_han])
    if _ORDERED and not _ORDERED.isdisjoint(text):  # of the characters that the line above has seen
        folded = decompose(text).translate(_STRIPPED[split_han])
    return " ".join(folded.split())


def clean_text(text: str) -> str:
    """Drop NUL, U+FFFD, control and format characters and lone surrogates; tabs and line ends become spaces."""
    if text.isprintable() and "\ufffd" not in text:  # a cheap test: nothing to drop in most texts
        return text
    return text.translate(_CLEANED)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which UTF-8 lacks and `tokenizers` refuses, by U+FFFD; offsets stay as they are."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    return text


def decompose(text: str) -> str:
    """Return the canonical decomposition (NFD) of a text in linear time, except for sorting each run of marks."""
    decomposed = "".join(unicodedata.normalize("NFD", character) for character in text)
    runs = groupby(decomposed, key=lambda character: unicodedata.combining(character) > 0)
    return "".join("".join(sorted(run, key=unicodedata.combining) if is_marks else run) for is_marks, run in runs)


class Remembered(dict):
    """Cache of a function of one argument: its value for each, computed on first use.

    Args:
        find: the function.
        most: values kept; those of more arguments are computed every time, and so are those of texts longer than
            `MAX_REMEMBERED_CHARACTERS`.
    """

    def __init__(self, find: Callable[[Any], Any], most: int):
        super().__init__()
        self._find, self._most = find, most

    def __missing__(self, key: Any) -> Any:
        value = self._find(key)
        if len(self) < self._most and (isinstance(key, int) or len(key) <= MAX_REMEMBERED_CHARACTERS):
            self[key] = value
        return value


# What `str.translate` puts in place of a character.


def _clean(code: int) -> str:
    character = chr(code)
    if character in "\t\n\r":
        return " "
    dropped = character in "\0\ufffd" or unicodedata.category(character) in ("Cc", "Cf", "Cs")
    return "" if dropped else character


def _separate(code: int, split_han: bool, strips: bool, decomposes: bool) -> str:
    """Return a character, with spaces around it if it is a word; on demand decomposed, and without accents."""
    character = chr(code)
    parts = unicodedata.normalize("NFD", character) if decomposes else character
    if decomposes and any(unicodedata.combining(part) and unicodedata.category(part) != "Mn" for part in parts):
        _ORDERED.add(character)
    found = ""
    for part in parts:
        if not strips or unicodedata.category(part) != "Mn":
            found += f" {part} " if is_punctuation(part) or split_han and is_han(part) else part
    return found


def is_punctuation(character: str) -> bool:
    """Return whether a character is a punctuation mark, which is always a word of its own."""
    # Symbols such as $ + < ^ count as punctuation in ASCII only: google-research/bert `_is_punctuation`.
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")


def is_han(character: str) -> bool:
    """Return whether a character is a Han ideograph, which is always a word of its own."""
    return any(first <= ord(character) <= last for first, last in HAN_RANGES)


_CLEANED = Remembered(_clean, MAX_REMEMBERED_CODES)
# Tables by whether Han characters are words of their own
_SPACED, _STRIPPED, _FOLDED = (
    {
        split_han: Remembered(
            partial(_separate, split_han=split_han, strips=strips, decomposes=decomposes), MAX_REMEMBERED_CODES
        )
        for split_han in (False, True)
    }
    for strips, decomposes in ((False, False), (True, False), (True, True))
)
_ORDERED: set[str] = set()  # characters seen with a mark that is not stripped, such as a musical stem
