"""Shuffled batches of a task's features for `model.fit`, with random access by index."""

from functools import lru_cache
from typing import Any

import grain
import numpy as np

from keras_bert_flow.data.accumulation import require_equal_parts
from keras_bert_flow.data.lengths import MAX_WIDTHS, choose_widths, deal_at_random, deal_by_length
from keras_bert_flow.data.order import ROWS
from keras_bert_flow.data.pretraining import READING
from keras_bert_flow.data.tasks import make_inputs, make_labels
from keras_bert_flow.tasks.core.features import Features


class TaskBatches:
    """Shuffled batches (inputs, labels, weights) of features by index, a function of `seed` and the index.

    The rows are reshuffled in each epoch. A batch holds random rows, so its gradient is an unbiased estimate with the
    variance of as many independent rows. Batches grouped by length have less padding. But if labels depend on length,
    the rows of such a batch are alike, and its gradient has more variance (`benchmarks/gradient_noise.py`).

    An ungrouped batch is mostly padding, since it is as wide as its longest row. Split into parts, from the shortest
    rows to the longest, each only as wide as needed, it has less padding and needs less memory. The losses must use sum
    reduction: the weights make the mean of the parts' losses, and of their gradients, that of the whole batch.

    If tokens have labels, the loss must also use sum reduction, and the weights make it a mean over the labelled tokens
    of a batch. With `group_by_length` that would give a token in short sentences several times the weight of one in
    long ones, so there the weights are 1 / the mean number of labelled tokens per batch.

    Args:
        features: rows with labels.
        batch_size: rows per batch.
        seed: of the order.
        max_widths: maximum number of batch widths, and the number of groups for `group_by_length`.
        group_by_length: batches hold rows of similar length instead of random ones.
        accumulate_batches: number of consecutive parts to split each batch into, each with its own index.
        compiles_shapes: whether each shape takes time to compile. If so, there are few widths, and the last batch of an
            epoch is padded with rows of weight 0. Otherwise a batch, or a part of one, is as wide as its longest row,
            and its rows are sorted by length, for `layers.packing`.
        plain_weights: weight 1 for each real row or labelled token, for the means of an evaluation.
    Attributes:
        steps_per_epoch: batches per epoch.
        mean_positions: mean number of token positions per batch, padding included.
    Raises:
        ValueError: there are no rows or no labels, or a batch does not split into equal parts.
    """

    def __init__(
        self,
        features: Features,
        batch_size: int,
        seed: int = 1,
        max_widths: int = MAX_WIDTHS,
        group_by_length: bool = False,
        accumulate_batches: int = 1,
        compiles_shapes: bool = True,
        plain_weights: bool = False,
    ):
        if not len(features) or not features.labels:
            raise ValueError("Training needs rows with labels. Received: none. Give a table with examples.")
        require_equal_parts(batch_size, accumulate_batches)
        self.features = features
        self.batch_size = batch_size
        self.seed = seed
        self.group_by_length = group_by_length
        self.accumulate_batches = accumulate_batches
        self.compiles_shapes = compiles_shapes
        self.plain_weights = plain_weights
        self.steps_per_epoch = -(-len(features) // batch_size)
        self._lengths, self._labelled_tokens = features.lengths, features.labelled_tokens
        self._groups = choose_widths(self._lengths, max_widths, features.sequence_length) if group_by_length else ()
        self._plan = lru_cache(maxsize=2)(self._plan_epoch)
        parts = [self._take_parts(0, place) for place in range(self.steps_per_epoch)]
        rows = np.array([len(part) for batch, _ in parts for part, _ in batch])
        longest = np.array([self._lengths[part].max() for batch, _ in parts for part, _ in batch])
        self.widths = self._groups or choose_widths(longest, max_widths, features.sequence_length)
        widths = np.take(self.widths, np.searchsorted(self.widths, longest)) if compiles_shapes else longest
        self.mean_positions = round(int((widths * rows).sum()) * features.sequences_per_row / self.steps_per_epoch)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> tuple[dict[str, np.ndarray], Any, Any]:
        step, part = divmod(number, self.accumulate_batches)
        parts, weight = self._take_parts(*divmod(step, self.steps_per_epoch))
        rows, is_real = parts[part]
        width = int(self._lengths[rows].max())
        if self.compiles_shapes:
            width = self.widths[int(np.searchsorted(self.widths, width))]
        labels, label_weights = make_labels(self.features, rows, width, is_real * np.float32(weight))
        return make_inputs(self.features, rows, width), labels, label_weights

    def _take_parts(self, epoch: int, place: int) -> tuple[list[tuple[np.ndarray, np.ndarray]], float]:
        """Return the parts of a batch, the shortest rows first, and the weight of a row.

        A part is (row indices, whether each row is real and not filler).
        """
        rows, count = self._plan(epoch)[place], self.accumulate_batches
        size = self.batch_size if self.compiles_shapes else -(-len(rows) // count) * count
        filled, is_real = np.resize(rows, size), np.arange(size) < len(rows)
        if count == 1 and self.compiles_shapes:
            return [(filled, is_real)], self._weigh(rows)
        order = np.argsort(self._lengths[filled], kind="stable")
        filled, is_real = filled[order], is_real[order]
        return list(zip(np.split(filled, count), np.split(is_real, count), strict=True)), self._weigh(rows)

    def _weigh(self, rows: np.ndarray) -> float:
        """Return the weight of each row of a batch without filler, or of each labelled token."""
        if self.plain_weights:
            return 1.0
        if self._labelled_tokens.any():
            counts = self._labelled_tokens
            tokens = counts.sum() / self.steps_per_epoch if self.group_by_length else counts[rows].sum()
            return self.accumulate_batches / (tokens or 1)  # a batch may have none
        return self.accumulate_batches / len(rows) if self.accumulate_batches > 1 else 1.0

    def _plan_epoch(self, epoch: int) -> list[np.ndarray]:
        rng = make_generator(self.seed, epoch)
        if self.group_by_length:
            return deal_by_length(self._lengths, self._groups, self.batch_size, rng)
        return deal_at_random(len(self.features), self.batch_size, rng)


def task_dataset(
    features: Features,
    batch_size: int,
    seed: int = 1,
    start_step: int = 0,
    max_widths: int = MAX_WIDTHS,
    group_by_length: bool = False,
    accumulate_batches: int = 1,
    compiles_shapes: bool = True,
) -> grain.IterDataset:
    """Return infinite shuffled batches (inputs, labels, weights); see `TaskBatches`.

    Its `steps_per_epoch` is the number of batches, or parts of them, of one pass over the rows, and what `fit` takes
    unless it is given another.

    Args:
        start_step: number of batches to skip at the start, at no cost.
        accumulate_batches: number of parts to split each batch into, for an optimizer that accumulates that many
            batches and losses with sum reduction; `steps_per_epoch` of `fit` counts parts.
    """
    options = (max_widths, group_by_length, accumulate_batches, compiles_shapes)
    dataset = read_batches(TaskBatches(features, batch_size, seed, *options), start_step)

    def plain_weights() -> grain.IterDataset:
        """Return the same batches for `evaluate`, in which no weight depends on the rest of its batch."""
        return read_batches(TaskBatches(features, batch_size, seed, *options, plain_weights=True), start_step)

    # Attributes, as Grain datasets are made by functions; `ModelWithHead` looks for them.
    dataset.plain_weights = plain_weights
    dataset.steps_per_epoch = -(-len(features) // batch_size) * accumulate_batches
    return dataset


def read_batches(batches: TaskBatches, start_step: int = 0) -> grain.IterDataset:
    """Return the dataset of batches from a step on, for `model.fit`."""
    return grain.MapDataset.source(batches)[start_step * batches.accumulate_batches :].to_iter_dataset(READING)


def make_generator(seed: int, epoch: int) -> np.random.Generator:
    """Return the random generator that shuffles the rows of an epoch."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch]))
