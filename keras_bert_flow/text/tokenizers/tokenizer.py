"""Tokenizer interface used by tasks and models, for every family, and counts of the characters that one loses."""

import re
import unicodedata
from array import array
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from keras_bert_flow.by_name import load_public
from keras_bert_flow.text.vocabulary import MAX_WORD_CHARACTERS

Offsets = tuple[np.ndarray, np.ndarray, np.ndarray]


class Tokenizer(Protocol):
    """Convert text to token ids and back. The five special tokens written out in a text are ordinary text.

    Attributes:
        pieces: the vocabulary, in the order of ids.
        cased: whether case and accents are kept.
        pad_id, unk_id, cls_id, sep_id, mask_id: ids of the special tokens, by BERT's names for them.
        special_ids: these five.
        separators: number of `sep_id` between two texts of one row.
        mask_token: spelling of a masked word in a text.
        mask_lstrip: whether it includes the spaces before it, as the one of byte-level BPE does.
        starts_word: bool, (vocabulary,). Whether a piece begins a word.
    Example:
        >>> tokenizer = kbf.Tokenizer.from_preset("model")
        >>> tokenizer.decode(tokenizer("A fine film"))
        'a fine film'
        >>> tokenizer.pieces[tokenizer.mask_id]
        '[MASK]'
    """

    pieces: tuple[str, ...]
    cased: bool
    pad_id: int
    unk_id: int
    cls_id: int
    sep_id: int
    mask_id: int
    special_ids: tuple[int, ...]
    separators: int
    mask_token: str
    mask_lstrip: bool = False
    starts_word: np.ndarray

    @classmethod
    def from_preset(cls, path: str | Path) -> "Tokenizer":
        """Read the tokenizer of a model directory, local or remote; see `data.model_tokenizer.read_tokenizer`.

        >>> tokenizer = kbf.Tokenizer.from_preset("runs/finetuning/KEY/pretrained/seed-1/model")  # doctest: +SKIP
        >>> tokenizer.decode(tokenizer("a fine film"))  # doctest: +SKIP
        'a fine film'
        """
        return load_public("TextPreprocessor").from_preset(path).tokenizer

    def __call__(self, texts: str | Sequence[str]) -> Any:
        """Return the ids of a text, or of each of several, int32, (tokens,), without special tokens.

        `TextPreprocessor` makes the inputs of a model.
        """
        return self.encode(texts) if isinstance(texts, str) else self.encode_batch(list(texts))

    @property
    def vocabulary_size(self) -> int:
        return len(self.pieces)

    @property
    def strips_accents(self) -> bool:
        """Whether accents are dropped, and with them the vowel signs and tones of other scripts."""

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, int32, (tokens,), without special tokens."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text."""
        return [self.encode(text) for text in texts]

    def encode_word(self, word: str) -> np.ndarray:
        """Return the ids of a word as in a text, after a space."""
        return self.encode(word)

    def encode_into(self, ids: array, text: str) -> int:
        """Append the ids of a text to an `array("i")`, and return how many."""
        found = self.encode(text)
        ids.extend(found.tolist())
        return len(found)

    def encode_with_offsets(self, text: str) -> Offsets:
        """Return the ids of a text and the start and end of each piece, in characters; int32, (tokens,) each."""

    def decode(self, ids: Iterable[int], skip_special: bool = False) -> str:
        """Return the text of some ids; what normalisation removed is not restored."""

    def append(self, text: str, piece: str) -> str:
        """Append a piece to a text: a new word, or a continuation of its last one."""

    def write(self, folder: Path) -> None:
        """Write the files that the tokenizer can be read from."""

    def describe(self) -> dict[str, Any]:
        """Return what makes the ids of a text apart from the pieces, as values that can be compared."""


def find_pieces(starts: np.ndarray, ends: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """Return the first and the last piece that overlap `text[start:end]`, or None if no piece does."""
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(starts, end, side="left")) - 1
    return (first, last) if first <= last else None


# Count the characters of a text that a tokenizer loses, and describe the loss with what prevents it.
#
# Characters are counted, not tokens: a whole sentence of a script without spaces may be one word, too long for
# WordPiece, and then one [UNK]. Counters have these names wherever there are any:
#
# - `characters`: all of them, spaces aside.
# - `unknown_characters`: those of words that become [UNK].
# - `long_word_characters`: those of words that are [UNK] since they are longer than `MAX_WORD_CHARACTERS`.
# - `stripped_characters`: those that uncased normalisation drops, or makes another letter, by dropping a mark that is
#   part of a letter: vowel signs and tones of Thai and Hindi, voicing of kana, tones of Vietnamese, й.

LOST = ("unknown_characters", "long_word_characters", "stripped_characters")
TOLD_SHARE = 0.001  # of the characters; less is only counted
SEGMENTERS = "pythainlp (Thai), khmer-nltk (Khmer), laonlp (Lao) or pyidaungsu (Burmese)"
CASED = "Set vocabulary.cased: true (--cased), or take a cased model."
LEARN = (
    "The vocabulary lacks their characters. Learn one from this text with `kbf vocab`, with case as here and without "
    "vocabulary.min_character_count."
)
# Marks that are no letters on their own: accents of Latin, Greek and Cyrillic, of symbols, and variation selectors.
_ACCENTS = (
    (0x0300, 0x036F),
    (0x0483, 0x0487),
    (0x180B, 0x180F),
    (0x1AB0, 0x1AFF),
    (0x1DC0, 0x1DFF),
    (0x20D0, 0x20FF),
    (0xFE00, 0xFE0F),
    (0xFE20, 0xFE2F),
)
_VIETNAMESE = "\u0309\u031b\u0323"  # hook and dot of tones, and the horn of ơ and ư; the dot also of Yoruba and Igbo
_CYRILLIC = "йїўЙЇЎ"  # letters of their own, not и, і and у with an accent
_BEYOND = re.compile("[\U00010000-\U0001ffff]")  # where scripts end; what follows is Han and variation selectors


def count_characters(text: str) -> int:
    """Return the number of characters of a text, spaces aside."""
    return len(text) - text.count(" ")


def count_stripped(text: str) -> int:
    """Return how many characters of a text lose a mark that is part of a letter when accents are dropped.

    Example:
        >>> count_stripped("möchte"), count_stripped("ที่นี่"), count_stripped("がか"), count_stripped("йод")
        (0, 4, 1, 1)
    """
    if text.isascii():
        return 0
    usual, others = _find_marked()
    return len(usual.findall(text)) + (len(others.findall(text)) if _BEYOND.search(text) else 0)


def count_unknown(tokenizer: Tokenizer, text: str) -> dict[str, int]:
    """Return `unknown_characters` and `long_word_characters` of a text."""
    ids, starts, ends = tokenizer.encode_with_offsets(text)
    widths = (ends - starts)[ids == tokenizer.unk_id]
    long = widths[widths > MAX_WORD_CHARACTERS]
    return {"unknown_characters": int(widths.sum()), "long_word_characters": int(long.sum())}


def count_lost(tokenizer: Tokenizer, text: str) -> dict[str, int]:
    """Return all counters of a text."""
    counts = {"characters": count_characters(text)}
    if tokenizer.strips_accents:
        counts["stripped_characters"] = count_stripped(text)
    return counts | (count_unknown(tokenizer, text) if tokenizer.unk_id in tokenizer.encode(text) else {})


def describe_lost(counters: Mapping[str, int], subject: str, lacking: str = LEARN) -> list[str]:
    """Return a sentence on each kind of loss that is more than `TOLD_SHARE` of the characters, with its remedy.

    Args:
        counters: the counters; missing ones are 0.
        subject: where the characters are, such as "the corpus".
        lacking: what to do about characters that the vocabulary lacks.
    """
    found = []
    if (unknown := lost_share(counters, "unknown_characters")) >= TOLD_SHARE:
        found.append(
            f"{100 * unknown:.2f} % of the characters of {subject} become [UNK]. {advise_unknown(counters, lacking)}"
        )
    if (stripped := lost_share(counters, "stripped_characters")) >= TOLD_SHARE:
        found.append(
            f"{100 * stripped:.2f} % of the characters of {subject} lose a mark that is part of the letter (vowel "
            f"signs, tones, voicing), since the vocabulary is uncased. {CASED}"
        )
    return found


def lost_share(counters: Mapping[str, int], name: str) -> float:
    """Return a counter's share of the characters."""
    return min(1.0, counters.get(name, 0) / counters["characters"]) if counters.get("characters") else 0.0


def advise_unknown(counters: Mapping[str, int], lacking: str = LEARN) -> str:
    """Return what to do about unknown characters: about long words, if these are most of them."""
    if 2 * counters.get("long_word_characters", 0) > counters.get("unknown_characters", 0):
        return (
            f"They are in words of over {MAX_WORD_CHARACTERS} characters: text without spaces. Put spaces between its "
            f"words first, by a segmenter such as {SEGMENTERS}; or learn a vocabulary that cuts such words: "
            "vocabulary.long_words=characters."
        )
    return lacking


@cache
def _find_marked() -> tuple[re.Pattern, re.Pattern]:
    """Return patterns of the characters that have, or are, a mark that is part of a letter.

    Those beyond 16 bits have one of their own, since `re` looks up a set of others in one step, and these one by one.
    """
    accents = {chr(code) for first, last in _ACCENTS for code in range(first, last + 1)} - {*_VIETNAMESE}
    patterns = []
    for codes in (range(0x80, 0x10000), range(0x10000, 0x20000)):
        marked = []
        for character in map(chr, codes):
            marks = {mark for mark in unicodedata.normalize("NFD", character) if unicodedata.category(mark) == "Mn"}
            if character in _CYRILLIC or marks - accents:
                marked.append(character)
        patterns.append(re.compile(f"[{''.join(marked)}]"))
    return patterns[0], patterns[1]
