"""Gradient accumulation: split batches into parts whose mean gradient is exactly that of the whole batch."""

from collections.abc import Callable
from typing import Any

import grain
import numpy as np


class SplitBatch(grain.experimental.FlatMapTransform):
    """Split (x, y, sample_weight) into equal parts, with weights for losses with sum reduction.

    The loss of a batch is, for each output, the mean over its predictions. The parts have different numbers of
    predictions, so the mean of their means would overweight predictions in parts with few. Therefore the weights are
    divided by their mean sum over the parts, which is known before the first part runs, and the loss of a part is its
    sum of weight × cross-entropy. The mean of the parts' losses, and of their gradients, is that of the whole batch.

    If several processes have equal shares of a batch, the sums and means are over all parts of all processes.

    Args:
        count: number of parts of these rows.
        processes: number of processes, each with a share of the batch.
        add_up: returns the sum of a number over the processes.
    """

    def __init__(self, count: int, processes: int = 1, add_up: Callable[[float], float] = lambda total: total):
        self.max_fan_out = count
        self._parts, self._add_up = count * processes, add_up

    def flat_map(self, element: tuple[dict, dict, dict]) -> list[tuple[dict, dict, dict]]:
        x, y, weights = element
        weights = {name: self._divide_by_mean_sum(weight) for name, weight in weights.items()}
        return [take_part((x, y, weights), part, self.max_fan_out) for part in range(self.max_fan_out)]

    def _divide_by_mean_sum(self, weight: np.ndarray) -> np.ndarray:
        total = self._add_up(float(weight.sum(dtype="float64")))
        return (weight * (self._parts / total)).astype("float32") if total else weight


def split_batches(dataset: grain.IterDataset, count: int, *share: Any) -> grain.IterDataset:
    """Split each batch of a dataset into consecutive parts; `share` are the other arguments of `SplitBatch`."""
    return grain.experimental.FlatMapIterDataset(dataset, SplitBatch(count, *share))


def take_part(batch: tuple[dict, dict, dict], part: int, count: int) -> Any:
    """Return the rows of one of `count` equal parts of a batch.

    Raises:
        ValueError: the rows do not divide evenly.
    """

    def rows(values: np.ndarray) -> np.ndarray:
        require_equal_parts(len(values), count)
        size = len(values) // count
        return values[part * size : (part + 1) * size]

    return tuple({name: rows(values) for name, values in group.items()} for group in batch)


def require_equal_parts(batch_size: int, count: int) -> None:
    """Raise ValueError unless a batch splits into `count` equal parts."""
    if batch_size % count:
        raise ValueError(
            f"A batch must split into equal parts. Received: {batch_size} sequences for {count} parts. "
            f"Try {batch_size // count * count or count} sequences."
        )
