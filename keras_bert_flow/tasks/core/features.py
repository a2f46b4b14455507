"""Features: encoded examples of a task, as sequences of token ids without padding, with labels."""

from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

IGNORED = -1  # label of positions without one, such as [CLS], continuations and padding; its weight is 0


@dataclass(frozen=True)
class Features:
    """Rows for a model. An example gives one row, or several if it is split into windows.

    Attributes:
        token_ids: int32, (length,) each, [CLS] and [SEP] included; `sequences_per_row` of them make a row.
        first_lengths: int32, (sequences,). Tokens of segment 0 of each sequence.
        examples: int32, (rows,). Index of the example of each row.
        labels: model output → its labels: an array, (rows, ...), or, for labels per token, a list of arrays, (length,)
            each, with `IGNORED` where there is no label. Empty for unlabelled texts.
        sequences_per_row: more than 1 if a row is a choice between texts, or a comparison.
        details: what the task needs for decoding, one entry per row.
        keeps_axis: keep the axis of sequences even with one sequence per row, as for a model of several.
        sequence_length: length that sequences were truncated to, so that no batch is wider; None if they were not.
        full_lengths: int, (sequences,). Length of each sequence before truncation; None if long texts are divided into
            windows instead.
    """

    token_ids: Sequence[np.ndarray]
    first_lengths: np.ndarray
    examples: np.ndarray
    labels: Mapping[str, Any] = field(default_factory=dict)
    sequences_per_row: int = 1
    details: Sequence[Any] = ()
    keeps_axis: bool = False
    sequence_length: int | None = None
    full_lengths: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def has_axis(self) -> bool:
        """Whether inputs are (rows, sequences, length), not (rows, length)."""
        return self.keeps_axis or self.sequences_per_row > 1

    @property
    def labelled_tokens(self) -> np.ndarray:
        """Number of tokens with a label in each row, int, (rows,); 0 if labels are per row."""
        of_tokens = [values for values in self.labels.values() if not isinstance(values, np.ndarray)]
        counts = [[np.count_nonzero(row != IGNORED) for row in values] for values in of_tokens]
        return np.array(counts, np.int64).sum(axis=0) if counts else np.zeros(len(self), np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """Length of the longest sequence of each row, int, (rows,)."""
        lengths = np.array([len(sequence) for sequence in self.token_ids], dtype=np.int64)
        return lengths.reshape(-1, self.sequences_per_row).max(axis=1, initial=0)


def join_texts(
    tokenizer: Tokenizer, first: np.ndarray, second: np.ndarray | None, sequence_length: int
) -> tuple[np.ndarray, int]:
    """Join texts to [CLS] A [SEP] or [CLS] A [SEP] B [SEP], truncating the end of the longer text if necessary.

    Some families have two [SEP] between A and B: `Tokenizer.separators`.

    Returns:
        The token ids, int32, (length,), and the number of tokens in segment 0.
    Raises:
        ValueError: there is no room for the special tokens.
    Source: google-research/bert, run_classifier.py, `convert_single_example`.
    """
    between = [tokenizer.sep_id] * tokenizer.separators
    num_special = count_joined(tokenizer, (), None if second is None else ())
    if sequence_length < num_special:
        raise ValueError(
            f"`sequence_length` must be at least {num_special}, for the special tokens around texts. "
            f"Received: {sequence_length}. Give more."
        )
    if second is None:
        token_ids = np.concatenate([[tokenizer.cls_id], first[: sequence_length - 2], [tokenizer.sep_id]])
        return token_ids.astype(np.int32), len(token_ids)
    lengths = [len(first), len(second)]
    while sum(lengths) > sequence_length - num_special:
        lengths[lengths[0] <= lengths[1]] -= 1
    parts = ([tokenizer.cls_id], first[: lengths[0]], between, second[: lengths[1]], [tokenizer.sep_id])
    return np.concatenate(parts).astype(np.int32), lengths[0] + 1 + len(between)


def count_joined(tokenizer: Tokenizer, first: Sized, second: Sized | None = None) -> int:
    """Return the number of tokens of joined texts without truncation."""
    return len(first) + (2 if second is None else 2 + tokenizer.separators + len(second))
