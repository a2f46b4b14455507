"""Hold what a model reads of a task's examples: sequences of pieces, each as long as it is."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

IGNORED = -1  # a label that is no label: of [CLS], of a continuation, of filler; its weight is 0


@dataclass(frozen=True)
class Features:
    """Rows for a model. An example gives one row, or several where it is cut into windows.

    Attributes:
        token_ids: int32, (length,) each, [CLS] and [SEP] included; `sequences_per_row` of them make a row.
        first_lengths: int32, (sequences,). Tokens of segment 0 of each sequence.
        examples: int32, (rows,). Place of the example that each row is of.
        labels: output of the model → what it should say: an array, (rows, ...), or where each token has a label of its
            own a list of arrays, (length,) each, with `IGNORED` where there is none. Empty for texts without labels.
        sequences_per_row: more than 1 where a row is a choice between texts, or a comparison.
        details: whatever the task wants to see again when it decodes, one a row.
        keeps_axis: a row of one sequence has an axis for its sequences, too, as that of a model of several has.
        sequence_length: what sequences were cut to, so that no batch is made wider; None: they were not.
    """

    token_ids: Sequence[np.ndarray]
    first_lengths: np.ndarray
    examples: np.ndarray
    labels: Mapping[str, Any] = field(default_factory=dict)
    sequences_per_row: int = 1
    details: Sequence[Any] = ()
    keeps_axis: bool = False
    sequence_length: int | None = None

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def has_axis(self) -> bool:
        """Whether inputs are (rows, sequences, length), not (rows, length)."""
        return self.keeps_axis or self.sequences_per_row > 1

    @property
    def labelled_tokens(self) -> np.ndarray:
        """How many tokens of each row have a label of their own, int, (rows,); 0 where rows have labels."""
        of_tokens = [values for values in self.labels.values() if not isinstance(values, np.ndarray)]
        counts = [[np.count_nonzero(row != IGNORED) for row in values] for values in of_tokens]
        return np.array(counts, np.int64).sum(axis=0) if counts else np.zeros(len(self), np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of the longest sequence of each row, int, (rows,)."""
        lengths = np.array([len(sequence) for sequence in self.token_ids], dtype=np.int64)
        return lengths.reshape(-1, self.sequences_per_row).max(axis=1, initial=0)


def join_texts(
    tokenizer: Tokenizer, first: np.ndarray, second: np.ndarray | None, sequence_length: int
) -> tuple[np.ndarray, int]:
    """Make [CLS] A [SEP] or [CLS] A [SEP] B [SEP]; what is too long loses the end of its longer part.

    Some families have two [SEP] between A and B: `Tokenizer.separators`.

    Returns:
        The token ids, int32, (length,), and how many of them are of segment 0.
    Raises:
        ValueError: there is no room for the special tokens.
    Source: google-research/bert, run_classifier.py, `convert_single_example`.
    """
    between = [tokenizer.sep_id] * tokenizer.separators
    num_special = 2 if second is None else 2 + len(between)
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
