"""Lay out instances as rows of matrices, with special tokens and zero padding."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    """

    token_ids: np.ndarray
    segment_ids: np.ndarray
    lengths: np.ndarray
    sentence_labels: np.ndarray
    mistaken_labels: int = 0


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
