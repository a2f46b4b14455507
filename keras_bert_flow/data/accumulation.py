"""Split batches into parts whose gradients, averaged, are exactly the gradient of the whole batch."""

from collections.abc import Callable
from typing import Any

import grain
import numpy as np


class SplitBatch(grain.experimental.FlatMapTransform):
    """Split (x, y, sample_weight) into equal parts, with weights for losses that are sums.

    The loss of a batch is, for each output, the mean over its predictions, of which the parts hold different numbers:
    the mean of the parts' means would give the predictions of a part with few of them too much weight. So the weights
    are divided by their mean sum over the parts, known before the first of them runs, and a part's loss is its sum of
    weight × cross-entropy. The mean of the parts' losses, and of their gradients, is then that of the whole batch.

    Where the rows are only a share of a batch, of which other processes have as many rows each, the sums are those over
    all parts of all processes, and so are the means.

    Args:
        count: parts of these rows.
        processes: that have a share each.
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
    """Return the parts of each batch one after another; `share` are the other arguments of `SplitBatch`."""
    return grain.experimental.FlatMapIterDataset(dataset, SplitBatch(count, *share))


def take_part(batch: tuple[dict, dict, dict], part: int, count: int) -> Any:
    """Return the rows of one of `count` equal parts.

    Raises:
        ValueError: the rows do not divide.
    """

    def rows(values: np.ndarray) -> np.ndarray:
        require_equal_parts(len(values), count)
        size = len(values) // count
        return values[part * size : (part + 1) * size]

    return tuple({name: rows(values) for name, values in group.items()} for group in batch)


def require_equal_parts(batch_size: int, count: int) -> None:
    """Raise a ValueError where so many rows do not split into so many equal parts."""
    if batch_size % count:
        raise ValueError(
            f"A batch must split into equal parts. Received: {batch_size} sequences for {count} parts. "
            f"Try {batch_size // count * count or count} sequences."
        )
