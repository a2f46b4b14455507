"""Tokenizer interface used by tasks and models, for every family."""

from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from keras_bert_flow.by_name import load_public

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
