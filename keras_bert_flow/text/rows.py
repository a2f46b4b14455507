"""Rows of token ids: instances with special tokens and padding, their pool, and their random numbers."""

import hashlib
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TokenRows:
    """Instances before masking.

    Attributes:
        token_ids: int32, (rows, sequence_length). [CLS] A [SEP] B [SEP], or [CLS] text [SEP], and zeros.
        segment_ids: uint8, (rows, sequence_length). 0 for [CLS] A [SEP], 1 for B [SEP].
        lengths: int, (rows,). Tokens, without padding.
        sentence_labels: bool, (rows,). Their meaning depends on the objective; see `objective.SentenceLabel`.
        mistaken_labels: how many of these the text contradicts; see `objective.SentenceLabel.mistaken`.
        text_numbers: int, (rows, sequence_length). In packed rows: 1, 2, ... for the tokens of each text, and zeros.
            None: one text a row.
    """

    token_ids: np.ndarray
    segment_ids: np.ndarray
    lengths: np.ndarray
    sentence_labels: np.ndarray
    mistaken_labels: int = 0
    text_numbers: np.ndarray | None = None


def join_pairs(
    token_ids: np.ndarray,
    places: np.ndarray,
    sentence_labels: np.ndarray,
    sequence_length: int,
    cls_id: int,
    sep_id: int,
) -> TokenRows:
    """Join segments to [CLS] A [SEP] B [SEP].

    Args:
        token_ids: int, (tokens,), which contains both segments.
        places: int, (rows, 4). Position and length of A and of B there, together at most `sequence_length - 3` tokens.
        sentence_labels: bool, (rows,), the labels.
        sequence_length: number of columns.
        cls_id: id of [CLS].
        sep_id: id of [SEP].
    """
    first, first_length, second, second_length = places.T[..., None]  # (rows, 1) each
    column = np.arange(sequence_length)
    middle = first_length + 1  # the column of the first [SEP]
    end = middle + second_length + 1  # that of the second one
    rows = token_ids.take(column + np.where(column < middle, first - 1, second - middle - 1), mode="clip")
    rows = rows.astype(np.int32, copy=False)
    rows[:, 0] = cls_id
    np.put_along_axis(rows, np.concatenate([middle, end], axis=1), sep_id, axis=1)
    is_token = column <= end
    return TokenRows(rows * is_token, ((column > middle) & is_token).view(np.uint8), end[:, 0] + 1, sentence_labels)


def pad_texts(texts: Sequence[np.ndarray], sequence_length: int) -> TokenRows:
    """Pad texts that already have their special tokens, all of one segment."""
    rows = np.zeros((len(texts), sequence_length), np.int32)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = text
    lengths = np.array([len(text) for text in texts])
    return TokenRows(rows, np.zeros(rows.shape, np.uint8), lengths, np.zeros(len(texts), bool))


class BestFit:
    """Rows that are filled with whole texts, each where it leaves the least room, the longest first.

    Args:
        row_length: tokens of a row.
    Attributes:
        counts: number of texts of each row.
    Source: best-fit decreasing, Johnson 1973; for packing of texts, Krell et al. 2021, arXiv:2107.02027.
    """

    def __init__(self, row_length: int) -> None:
        self.counts: list[int] = []
        self._length = row_length
        self._open: list[tuple[int, int]] = []  # (tokens free, row), the fullest first

    def place(self, lengths: Sequence[int]) -> list[tuple[int, int, int]]:
        """Return for each text its row, its first place there, and its number in the row, from 1.

        Args:
            lengths: tokens of each text, at most a row.
        """
        places = [(0, 0, 0)] * len(lengths)
        for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
            fitting = bisect_left(self._open, (lengths[text], -1))
            if fitting < len(self._open):
                free, row = self._open.pop(fitting)
            else:
                free, row = self._length, len(self.counts)
                self.counts.append(0)
            self.counts[row] += 1
            places[text] = (row, self._length - free, self.counts[row])
            if free > lengths[text]:
                insort(self._open, (free - lengths[text], row))
        return places


def join_texts(texts: Sequence[np.ndarray], places: Sequence[tuple[int, int, int]], sequence_length: int) -> TokenRows:
    """Put texts with their special tokens, all of one segment, at the places of a `BestFit`."""
    rows = np.zeros((1 + max(row for row, _, _ in places), sequence_length), np.int32)
    numbers = np.zeros_like(rows)
    for text, (row, start, number) in zip(texts, places, strict=True):
        rows[row, start : start + len(text)], numbers[row, start : start + len(text)] = text, number
    lengths, labels = np.count_nonzero(numbers, axis=1), np.zeros(len(rows), bool)
    return TokenRows(rows, np.zeros(rows.shape, np.uint8), lengths, labels, text_numbers=numbers)


# Random numbers that depend on content alone: one counter-based generator for each named purpose.
#
# The number of a worker, the order of work, retries and the clock have no effect on what is drawn.


def keyed_generator(*key: str | int) -> np.random.Generator:
    """Return a Philox generator that is a pure function of the key, such as (seed, purpose, document id, copy)."""
    # NumPy's stubs lack `ISeedSequence` as an argument.
    return np.random.Generator(np.random.Philox(_Key(_digest(key, 16).digest())))  # type: ignore[arg-type]


def keyed_number(*key: str | int | bytes) -> int:
    """Map a key to a uniformly distributed number below 256 ** 8."""
    return int.from_bytes(_digest(key, 8).digest(), "little")


def keyed_numbers(*beginning: str | int | bytes) -> Callable[[bytes], int]:
    """Return a function that maps the last part of a key to `keyed_number(*beginning, last)`, faster for many keys."""
    copy, from_bytes = _digest(beginning, 8).copy, int.from_bytes

    def find_number(last: bytes) -> int:
        digest = copy()
        digest.update(len(last).to_bytes(8, "little") + last)
        return from_bytes(digest.digest(), "little")

    return find_number


def as_fraction(number: int) -> float:
    """Map a number below 256 ** 8 to one in [0, 1)."""
    return (number >> 11) / 2**53  # a float holds 53 bits; more would round up to 1.0


class _Key(np.random.bit_generator.ISeedSequence):
    """Pass 16 bytes to Philox as its key; `Philox(key=...)` also draws system entropy, in twice the time."""

    def __init__(self, key: bytes):
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return np.frombuffer(self._key, "<u8")  # (2,), what Philox asks for


def _digest(key: Iterable[str | int | bytes], digest_bytes: int) -> "hashlib.blake2b":
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in key]
    # The length distinguishes ("ab", "c") from ("a", "bc").
    named = b"".join([len(part).to_bytes(8, "little") + part for part in parts])
    return hashlib.blake2b(named, digest_size=digest_bytes)


# Pool of documents as one row of tokens, in which a segment is a position and a length.


@dataclass(frozen=True)
class TokenizedDocument:
    """A document as sentences of token ids; `id` is the digest of its text."""

    id: str
    token_ids: np.ndarray  # int32, (tokens,)
    sentence_lengths: np.ndarray  # int32, (sentences,), none of them 0


def held_out_choice(fraction: float, seed: int) -> Callable[[str], bool]:
    """Return a function of the id of a document: whether it is held out of training, for evaluation."""
    find_number = keyed_numbers(seed, "held out")
    return lambda document_id: as_fraction(find_number(document_id.encode())) < fraction


@dataclass(frozen=True)
class Pool:
    """The tokens of documents, and the positions of their sentences, which are numbered across all documents.

    Attributes:
        token_ids: int, (tokens,).
        borders: the position of the first token of each sentence and, last, the number of tokens.
        firsts: the number of the first sentence of each document and, last, the number of sentences.
    """

    token_ids: np.ndarray
    borders: list[int]
    firsts: list[int]

    @classmethod
    def of(cls, documents: Sequence[TokenizedDocument]) -> "Pool":
        """Concatenate documents, in order."""
        lengths = [document.sentence_lengths for document in documents]
        borders = np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64).tolist()
        firsts = np.cumsum([0, *map(len, lengths)]).tolist()
        token_ids = np.concatenate([np.array([], np.int32), *(document.token_ids for document in documents)])
        return cls(token_ids, borders, firsts)

    @cached_property
    def sentence_numbers(self) -> list[int]:
        """A number for each sentence; equal sentences have the same."""
        data, size = self.token_ids.tobytes(), self.token_ids.itemsize
        numbers: dict[bytes, int] = {}
        spans = pairwise(self.borders)
        return [numbers.setdefault(data[size * start : size * end], len(numbers)) for start, end in spans]

    def end_of_chunk(self, start: int, stop: int, target: int) -> int:
        """Return the end of a chunk: from `start`, enough sentences for `target` tokens, at least one, up to `stop`."""
        return bisect_left(self.borders, self.borders[start] + target, start + 1, stop)

    def place(self, start: int, end: int) -> tuple[int, int]:
        """Return the position and the length, in tokens, of the sentences from `start` to before `end`."""
        return self.borders[start], self.borders[end] - self.borders[start]
