"""Tokenizer interface used by tasks and models, for every family, and token offsets in the original text."""

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from keras_bert_flow.by_name import load_public
from keras_bert_flow.text.tokenizers.normalization import (
    MAX_REMEMBERED_CHARACTERS,
    MAX_REMEMBERED_CODES,
    MAX_REMEMBERED_WORDS,
    clean_text,
)
from keras_bert_flow.text.vocabulary.vocab_file import CONTINUATION

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
    def vocabulary_size(self) -> int: ...

    @property
    def strips_accents(self) -> bool:
        """Whether accents are dropped, and with them the vowel signs and tones of other scripts."""

    def encode(self, text: str) -> np.ndarray:
        """Return the ids of a text, int32, (tokens,), without special tokens."""

    def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the ids of each text."""

    def encode_word(self, word: str) -> np.ndarray:
        """Return the ids of a word as in a text, after a space."""

    def encode_into(self, ids: array, text: str) -> int:
        """Append the ids of a text to an `array("i")`, and return how many."""

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


# Token offsets: where each piece begins and ends in the original text.

# Text between two spaces. `clean_text` drops these control characters, which `\s` matches as spaces, and joins what is
# around them.
CHUNK = re.compile(r"[\S\x0b\x0c\x1c-\x1f\x85]+")

Spans = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]  # ids, starts and ends of a chunk's pieces


class WordPieces(Protocol):
    """What is needed of a `WordPieceTokenizer`."""

    pieces: tuple[str, ...]
    unk_id: int
    starts_word: np.ndarray

    def normalize(self, text: str) -> str: ...

    def encode_words(self, text: str) -> tuple[int, ...]: ...


def encode_with_offsets(tokenizer: WordPieces, text: str) -> Offsets:
    """Return the ids of a text, and where in the original text each piece begins and ends.

    Added tokens are not looked for.

    `text[start:end]` is the source of a piece, as written: with its accents, even as separate characters, and with
    whatever was dropped inside it; what was dropped between two pieces is in neither. If a character gives several
    pieces, such as a Hangul syllable that is folded into letters, each has the whole character. The marks of one letter
    are taken in the order written, though Unicode's canonical order may differ.

    Returns:
        The ids, the same as `tokenizer.encode_words(text)`, the starts and the ends, in characters of `text`; int32,
        (pieces,) each. Starts and ends are non-decreasing.
    """
    matches = list(CHUNK.finditer(text))
    chunk_spans = _remember_spans(tokenizer)  # type: ignore[arg-type]  # hashed by identity
    spans = [chunk_spans[match.group()] for match in matches]
    ids, starts, ends = (
        np.fromiter(chain.from_iterable(map(itemgetter(part), spans)), dtype=np.int32) for part in range(3)
    )
    places = np.array([match.start() for match in matches], dtype=np.int32)
    places = places.repeat([len(span[0]) for span in spans])  # (pieces,)
    return ids, starts + places, ends + places


def find_pieces(starts: np.ndarray, ends: np.ndarray, start: int, end: int) -> tuple[int, int] | None:
    """Return the first and the last piece that overlap `text[start:end]`, or None if no piece does."""
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(starts, end, side="left")) - 1
    return (first, last) if first <= last else None


@lru_cache(maxsize=4)
def _remember_spans(tokenizer: WordPieces) -> "_ChunkSpans":
    return _ChunkSpans(tokenizer)


class _ChunkSpans(dict):
    """Cache of the pieces of chunks, which are the text between two spaces."""

    def __init__(self, tokenizer: WordPieces):
        super().__init__()
        self._tokenizer = tokenizer
        self._lengths = [len(piece.removeprefix(CONTINUATION)) for piece in tokenizer.pieces]
        self._kept = _KeptCharacters(tokenizer.normalize)

    def __missing__(self, chunk: str) -> Spans:
        ids = self._tokenizer.encode_words(chunk)
        firsts, lasts = self._trace(chunk)
        ends = list(accumulate(self._measure(chunk, ids)))  # in characters of the normalised chunk, without spaces
        starts = [0, *ends[:-1]]
        spans = ids, tuple(firsts[start] for start in starts[: len(ids)]), tuple(lasts[end - 1] for end in ends)
        if len(chunk) <= MAX_REMEMBERED_CHARACTERS and len(self) < MAX_REMEMBERED_WORDS:
            self[chunk] = spans
        return spans

    def _measure(self, chunk: str, ids: tuple[int, ...]) -> list[int]:
        """Return the number of characters of each piece; [UNK] has those of its whole word."""
        tokenizer = self._tokenizer
        lengths = [self._lengths[piece_id] for piece_id in ids]
        if tokenizer.unk_id in ids:
            words = iter(tokenizer.normalize(chunk).split())
            for place, piece_id in enumerate(ids):
                word = next(words) if tokenizer.starts_word[piece_id] else ""
                if piece_id == tokenizer.unk_id:
                    lengths[place] = len(word)
        return lengths

    def _trace(self, chunk: str) -> tuple[list[int] | range, list[int] | range]:
        """Return the start and end in a chunk of the source of each character of the normalised chunk."""
        if chunk.isascii() and chunk.isprintable():  # nothing is dropped, and each character gives one
            return range(len(chunk)), range(1, len(chunk) + 1)
        firsts: list[int] = []
        lasts: list[int] = []
        for place, character in enumerate(chunk):
            count = self._kept[character]
            if count > 0:
                firsts += [place] * count
                lasts += [place + 1] * count
            elif count < 0 and lasts:
                lasts[-1] = place + 1
        return firsts, lasts


class _KeptCharacters(dict):
    """Cache of how many characters normalisation makes of one: 0 if it is dropped, -1 for an accent that is stripped.

    Neighbouring characters do not change that: they only affect the form of the small sigma, and the order of marks.
    """

    def __init__(self, normalize: Callable[[str], str]):
        super().__init__()
        self._normalize = normalize

    def __missing__(self, character: str) -> int:
        count = len(self._normalize(character).replace(" ", ""))
        if count == 0 and clean_text(character):
            count = -1
        if len(self) < MAX_REMEMBERED_CODES:
            self[character] = count
        return count
