"""Batches of labelled texts with several texts in a row, each with a number of its own in `padding_mask`."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from keras_bert_flow.text.rows import BestFit

Batch = tuple[dict[str, np.ndarray], Any, Any]  # inputs, labels and weights of `model.fit`
Places = Sequence[tuple[int, int, int]]  # of each text: its row, its first place there, and its number in the row


def place_texts(lengths: np.ndarray, row_length: int) -> Places:
    """Return the places of texts in as few rows as best fit needs, the longest text first.

    Args:
        lengths: int, (texts,). Tokens of each, at most a row.
    """
    return BestFit(row_length).place(lengths.tolist())


def pack_batch(batch: Batch, lengths: np.ndarray, places: Places, shape: tuple[int, int]) -> Batch:
    """Return a batch with the texts of its rows at other places; the rest is padding of weight 0.

    Every token keeps its label and its weight, so a sum over tokens is that of the batch as it was.

    Args:
        batch: rows of a text each, whose labels and weights are of tokens.
        lengths: int, (texts,). Tokens of each.
        places: of each; see `place_texts`.
        shape: rows and width of the packed batch.
    """
    inputs, labels, weights = batch
    numbers = [number for _, _, number in places]
    inputs = inputs | {"padding_mask": inputs["padding_mask"] * np.array(numbers, np.int32)[:, None]}

    def pack(values: Any) -> Any:
        if isinstance(values, dict):
            return {name: pack(each) for name, each in values.items()}
        packed = np.zeros(shape, values.dtype)
        for text, length, (row, start, _) in zip(values, lengths, places, strict=True):
            packed[row, start : start + length] = text[:length]
        return packed

    return pack(inputs), pack(labels), pack(weights)
