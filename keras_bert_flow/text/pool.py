"""Pool of documents as one row of tokens, in which a segment is a position and a length."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from keras_bert_flow.text.randomness import as_fraction, keyed_numbers


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
