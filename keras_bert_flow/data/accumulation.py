"""Split batches into parts whose gradients, averaged, are exactly the gradient of the whole batch."""

from typing import Any

import grain
import numpy as np


class SplitBatch(grain.experimental.FlatMapTransform):
    """Split (x, y, sample_weight) into equal parts, with weights for losses that are sums.

    The loss of a batch is, for each output, the mean over its predictions, of which the parts hold different numbers:
    the mean of the parts' means would give the predictions of a part with few of them too much weight. So the weights
    are divided by their mean sum over the parts, known before the first of them runs, and a part's loss is its sum of
    weight × cross-entropy. The mean of the parts' losses, and of their gradients, is then that of the whole batch.

    Args:
        count: parts of a batch.
    """

    def __init__(self, count: int):
        self.max_fan_out = count

    def flat_map(self, element: tuple[dict, dict, dict]) -> list[tuple[dict, dict, dict]]:
        x, y, weights = element
        weights = {name: _divide_by_mean_sum(weight, self.max_fan_out) for name, weight in weights.items()}
        return [_take_part((x, y, weights), part, self.max_fan_out) for part in range(self.max_fan_out)]


def split_batches(dataset: grain.IterDataset, count: int) -> grain.IterDataset:
    """Return the parts of each batch one after another; see `SplitBatch`."""
    return grain.experimental.FlatMapIterDataset(dataset, SplitBatch(count))


def _divide_by_mean_sum(weight: np.ndarray, count: int) -> np.ndarray:
    total = float(weight.sum(dtype="float64"))
    return (weight * (count / total)).astype("float32") if total else weight


def _take_part(batch: tuple[dict, dict, dict], part: int, count: int) -> Any:
    def rows(values: np.ndarray) -> np.ndarray:
        if len(values) % count:
            raise ValueError(
                f"A batch must split into equal parts. Received: {len(values)} sequences for {count} parts. "
                f"Try {len(values) // count * count or count} sequences."
            )
        size = len(values) // count
        return values[part * size : (part + 1) * size]

    return tuple({name: rows(values) for name, values in group.items()} for group in batch)
