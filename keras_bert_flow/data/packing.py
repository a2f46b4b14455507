"""Packing: several texts per row, so that rows of short texts hold hardly any padding."""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class PackedRows:
    """Rows that hold several texts each.

    Attributes:
        inputs: `token_ids`, `segment_ids` and `padding_mask`, int32, (rows, row_length). `padding_mask` numbers the
            texts of a row from 1; 0 is padding.
        rows, starts: int64, (texts,). The row of each text, and its first place there.
    """

    inputs: dict[str, np.ndarray]
    rows: np.ndarray
    starts: np.ndarray


def pack_rows(inputs: Mapping[str, np.ndarray], row_length: int) -> PackedRows:
    """Put texts that have a row each into as few rows as possible, whole, by best fit with the longest first.

    Models whose outputs are all of tokens, such as `MaskedLM` and `TokenClassifier`, compute on packed rows what they
    compute on the texts alone. Rows and their order depend on nothing but the lengths of the texts.

    Args:
        inputs: `token_ids`, `segment_ids` and `padding_mask`, int, (texts, length), with padding at the end, as a
            `TextPreprocessor` makes them.
        row_length: tokens per row.
    Returns:
        The rows, and where each text is.
    Raises:
        ValueError: a text is longer than a row, has no tokens, or has padding between them.
    Source: Krell et al. 2021, arXiv:2107.02027, who pack for BERT; best-fit decreasing is of Johnson 1973.
    Example:
        >>> preprocessor = kbf.TextPreprocessor(kbf.Tokenizer.from_preset("model"), sequence_length=16)
        >>> inputs = preprocessor(["the film was fine", "a dull story", "it seemed bad"])
        >>> packed = kbf.pack_rows(inputs, row_length=16)
        >>> packed.inputs["padding_mask"].tolist()
        [[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3]]
        >>> packed.rows.tolist(), packed.starts.tolist()
        ([0, 0, 0], [0, 6, 11])
    """
    mask = np.asarray(inputs["padding_mask"]) > 0
    lengths = mask.sum(axis=1)
    is_prefix = (mask == (np.arange(mask.shape[1]) < lengths[:, None])).all(axis=1)
    wrong = np.flatnonzero((lengths == 0) | (lengths > row_length) | ~is_prefix)
    if len(wrong):
        raise ValueError(
            f"A text must have 1 to {row_length} tokens, with padding at the end. Received: {lengths[wrong[0]]} tokens "
            f"in text {wrong[0]}. Cut the texts, take longer rows, or leave out empty texts."
        )
    places = _place(lengths.tolist(), row_length)
    count = max((row for row, _, _ in places), default=-1) + 1
    packed = {name: np.zeros((count, row_length), np.int32) for name in inputs}
    for text, (row, start, number) in enumerate(places):
        part = slice(start, start + lengths[text])
        for name, values in inputs.items():
            packed[name][row, part] = number if name == "padding_mask" else values[text][: lengths[text]]
    rows, starts, _ = np.array(places, np.int64).reshape(-1, 3).T
    return PackedRows(packed, rows, starts)


def _place(lengths: Sequence[int], row_length: int) -> list[tuple[int, int, int]]:
    """Return for each text its row, its first place in the row, and its number there, from 1."""
    places = [(0, 0, 0)] * len(lengths)
    open_rows: list[tuple[int, int]] = []  # (tokens free, row), the fullest first
    counts: list[int] = []  # texts of each row
    for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
        fitting = bisect_left(open_rows, (lengths[text], -1))
        if fitting < len(open_rows):
            free, row = open_rows.pop(fitting)
        else:
            free, row = row_length, len(counts)
            counts.append(0)
        counts[row] += 1
        places[text] = (row, row_length - free, counts[row])
        if free > lengths[text]:
            insort(open_rows, (free - lengths[text], row))
    return places
