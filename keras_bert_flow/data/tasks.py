"""Feed the features of a task to `model.fit` and `predict`: batches, each a function of its number."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import grain
import numpy as np

from keras_bert_flow.data.accumulation import require_equal_parts
from keras_bert_flow.data.lengths import (
    MAX_WIDTHS,
    choose_few_widths,
    choose_widths,
    deal_at_random,
    deal_by_length,
    fill_up,
    plan_in_order,
    plan_tightly,
)
from keras_bert_flow.data.pretraining import READING, ROWS
from keras_bert_flow.tasks.features import IGNORED, Features

BATCH_POSITIONS = 4096  # of a batch in prediction: 64 rows of 64; more of them were no faster on a processor
ChooseWidths = Callable[[np.ndarray], Sequence[int]]  # lengths of rows, int, (rows,) → widths of batches, rising
ONLY_OUTPUT = "logits"  # name in features and predictions of what a model with one output says


class TaskBatches:
    """Shuffled batches (inputs, labels, weights) of features, by number: each depends on `seed` and its number.

    Each pass over the rows deals them out anew; the last batch of a pass is filled up with rows of weight 0.

    Where tokens have labels, the loss is to be a sum, and their weights make it a mean over those of a batch. Where
    batches are of like length, that would give a token among short sentences several times the weight of one among long
    ones: there weights are 1 / how many tokens with labels are in a batch on the average.

    A batch of any rows is mostly padding, as wide as its longest. In parts, from its shortest rows to its longest, each
    as wide as it need be, it is not; and parts need less memory. Their losses are to be sums as well: the weights are
    such that the mean of the parts' losses, and of their gradients, is that of the whole batch.

    Args:
        features: rows with labels.
        batch_size: rows of a batch.
        seed: of the order.
        max_widths: most widths that batches have.
        group_by_length: batches hold rows of like length; if not, any rows.
        accumulate_batches: parts in which each batch comes, one after another, each with a number of its own.
    Attributes:
        steps_per_epoch: batches of a pass.
        mean_positions: of a batch, padding included.
    Raises:
        ValueError: there are no rows, or no labels; or a batch does not split into equal parts.
    """

    def __init__(
        self,
        features: Features,
        batch_size: int,
        seed: int = 1,
        max_widths: int = MAX_WIDTHS,
        group_by_length: bool = True,
        accumulate_batches: int = 1,
    ):
        if not len(features) or not features.labels:
            raise ValueError("Training needs rows with labels. Received: none. Give a table with examples.")
        require_equal_parts(batch_size, accumulate_batches)
        self.features = features
        self.batch_size = batch_size
        self.seed = seed
        self.group_by_length = group_by_length
        self.accumulate_batches = accumulate_batches
        self.steps_per_epoch = -(-len(features) // batch_size)
        self._lengths, self._labelled_tokens = features.lengths, features.labelled_tokens
        self._plan = lru_cache(maxsize=2)(self._plan_epoch)
        longest = self._lengths if group_by_length else self._measure_parts(0)
        self.widths = choose_widths(longest, max_widths, features.sequence_length)
        widths = np.take(self.widths, np.searchsorted(self.widths, self._measure_parts(0)))
        positions = int(widths.sum()) * batch_size // accumulate_batches * features.sequences_per_row
        self.mean_positions = round(positions / self.steps_per_epoch)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> tuple[dict[str, np.ndarray], Any, Any]:
        step, part = divmod(number, self.accumulate_batches)
        rows, weights = self._take_rows(*divmod(step, self.steps_per_epoch))
        size = self.batch_size // self.accumulate_batches
        chosen = slice(part * size, (part + 1) * size)
        width = self.widths[int(np.searchsorted(self.widths, self._lengths[rows[chosen]].max()))]
        labels, label_weights = make_labels(self.features, rows[chosen], width, weights[chosen])
        return make_inputs(self.features, rows[chosen], width), labels, label_weights

    def _take_rows(self, epoch: int, place: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of a batch, filled up, with their weights; where it comes in parts, the shortest first."""
        rows = self._plan(epoch)[place]
        filled, is_real = np.resize(rows, self.batch_size), np.arange(self.batch_size) < len(rows)
        if self.accumulate_batches > 1:
            order = np.argsort(self._lengths[filled], kind="stable")
            filled, is_real = filled[order], is_real[order]
        return filled, is_real * np.float32(self._weigh(rows))

    def _weigh(self, rows: np.ndarray) -> float:
        """Return the weight of each of a batch's rows, filler left out, or of each of their labelled tokens."""
        if self._labelled_tokens.any():
            counts = self._labelled_tokens
            tokens = counts.sum() / self.steps_per_epoch if self.group_by_length else counts[rows].sum()
            return self.accumulate_batches / (tokens or 1)  # a batch may have none
        return self.accumulate_batches / len(rows) if self.accumulate_batches > 1 else 1.0

    def _plan_epoch(self, epoch: int) -> list[np.ndarray]:
        rng = make_generator(self.seed, epoch)
        if self.group_by_length:
            return deal_by_length(self._lengths, self.widths, self.batch_size, rng)
        return deal_at_random(len(self.features), self.batch_size, rng)

    def _measure_parts(self, epoch: int) -> np.ndarray:
        """Return the longest length in each part of each batch of a pass, int, (batches × parts,)."""
        batches = [self._take_rows(epoch, place)[0] for place in range(self.steps_per_epoch)]
        return self._lengths[np.array(batches)].reshape(self.steps_per_epoch * self.accumulate_batches, -1).max(axis=1)


def task_dataset(
    features: Features,
    batch_size: int,
    seed: int = 1,
    start_step: int = 0,
    max_widths: int = MAX_WIDTHS,
    group_by_length: bool = True,
    accumulate_batches: int = 1,
) -> grain.IterDataset:
    """Return endless batches (inputs, labels, weights); use with `steps_per_epoch`. See `TaskBatches`.

    Args:
        start_step: batches to leave out at the start, at no cost.
        accumulate_batches: parts in which each batch comes, for an optimizer that accumulates as many and losses that
            are sums; `steps_per_epoch` of `fit` counts parts.
    """
    batches = TaskBatches(features, batch_size, seed, max_widths, group_by_length, accumulate_batches)
    return read_batches(batches, start_step)


def read_batches(batches: TaskBatches, start_step: int = 0) -> grain.IterDataset:
    """Return batches from a step on, for `model.fit`."""
    return grain.MapDataset.source(batches)[start_step * batches.accumulate_batches :].to_iter_dataset(READING)


def make_generator(seed: int, epoch: int) -> np.random.Generator:
    """Return what deals out the rows of a pass."""
    return np.random.Generator(np.random.Philox(key=[seed, epoch]))


def make_inputs(features: Features, rows: np.ndarray, width: int) -> dict[str, np.ndarray]:
    """Return the inputs of some rows, int32, (rows, width); with `has_axis` (rows, sequences_per_row, width)."""
    group = features.sequences_per_row
    sequences = (rows[:, None] * group + np.arange(group)).reshape(-1)
    token_ids, segment_ids, padding_mask = np.zeros((3, len(sequences), width), np.int32)
    for place, sequence in enumerate(sequences):
        ids = features.token_ids[sequence]
        token_ids[place, : len(ids)] = ids
        segment_ids[place, features.first_lengths[sequence] : len(ids)] = 1
        padding_mask[place, : len(ids)] = 1
    inputs = {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": padding_mask}
    if not features.has_axis:
        return inputs
    return {name: ids.reshape(len(rows), group, width) for name, ids in inputs.items()}


def make_labels(features: Features, rows: np.ndarray, width: int, weights: np.ndarray) -> tuple[Any, Any]:
    """Return the labels of some rows and their weights: arrays, or dicts of them for a model with several outputs.

    Args:
        weights: float32, (rows,). Where each token has a label, those `IGNORED` weigh nothing besides.
    """
    labels, label_weights = {}, {}
    for name, values in features.labels.items():
        if isinstance(values, np.ndarray):
            labels[name], label_weights[name] = values[rows], weights
            continue
        of_tokens = np.full((len(rows), width), IGNORED, np.int32)
        for place, row in enumerate(rows):
            of_tokens[place, : len(values[row])] = values[row]
        label_weights[name] = (of_tokens != IGNORED) * weights[:, None]
        labels[name] = np.maximum(of_tokens, 0)
    if set(labels) == {ONLY_OUTPUT}:
        return labels[ONLY_OUTPUT], label_weights[ONLY_OUTPUT]
    return labels, label_weights


def predict_features(
    model,
    features: Features,
    max_widths: int = MAX_WIDTHS,
    batch_positions: int = BATCH_POSITIONS,
    follow: Callable = iter,
    choose: ChooseWidths | None = None,
) -> dict[str, Any]:
    """Ask a model about every row, in batches of like length.

    Args:
        model: has `output` and `predict_on_batch`; where its `compiles_shapes` is false, as that of every model of this
            package on PyTorch, no row is filled up beyond the longest of its batch, and no batch beyond its rows.
        follow: takes the batches and yields them again; it may show progress, or raise to break off.
        choose: makes widths of the lengths of the rows, for a model that compiles each shape; by default those by which
            least is padding, as many as are worth it, `max_widths` at most.
    Returns:
        Output of the model → float32, (rows, ...); or, where each token has an output, a list of (length, ...).
    """
    if not len(features):
        return {}
    outputs = model.output if isinstance(model.output, Mapping) else {ONLY_OUTPUT: model.output}
    lengths, answers = features.lengths, {name: [None] * len(features) for name in outputs}
    of_tokens = {name: not features.has_axis and _is_per_token(output) for name, output in outputs.items()}
    if choose is None:
        limits = {"max_widths": max_widths, "longest": features.sequence_length}
        choose = partial(choose_few_widths, batch_positions=batch_positions, **limits)
    for rows, found in ask_in_batches(model, features, choose, batch_positions, follow):
        for name, values in found.items():
            for row, answer in zip(rows, values, strict=True):
                answers[name][row] = answer[: lengths[row]] if of_tokens[name] else answer
    return {name: found if of_tokens[name] else np.stack(found) for name, found in answers.items()}


def ask_in_batches(
    model,
    features: Features,
    choose: ChooseWidths,
    batch_positions: int,
    follow: Callable = iter,
    make: Callable = make_inputs,
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yield rows and what a model says of them, float32 by output, batch by batch, the narrowest first.

    Args:
        choose, follow: as for `predict_features`.
        make: makes inputs as `make_inputs` does, and others that the model takes.
    """
    compiles, lengths = getattr(model, "compiles_shapes", True), features.lengths
    plan = (
        plan_in_order(lengths, choose(lengths), batch_positions) if compiles else plan_tightly(lengths, batch_positions)
    )
    for rows, width in follow(plan):
        asked = fill_up(rows, batch_positions // width) if compiles else rows
        found = model.predict_on_batch(make(features, asked, width))
        named = found if isinstance(found, Mapping) else {ONLY_OUTPUT: found}
        yield rows, {name: np.asarray(values, np.float32)[: len(rows)] for name, values in named.items()}


def _is_per_token(output) -> bool:
    return len(output.shape) > 1 and output.shape[1] is None  # (batch, length, ...); the length is not fixed
