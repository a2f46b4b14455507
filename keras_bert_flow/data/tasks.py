"""Feed the features of a task to `model.fit` and `predict`: batches, each a function of its number."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import grain
import numpy as np

from keras_bert_flow.data.lengths import (
    MAX_WIDTHS,
    choose_few_widths,
    choose_widths,
    deal_out,
    fill_up,
    plan_epoch,
    plan_in_order,
    plan_tightly,
)
from keras_bert_flow.data.pretraining import READING, ROWS
from keras_bert_flow.tasks.features import IGNORED, Features
from keras_bert_flow.text.tokenizer import WordPieceTokenizer

BATCH_POSITIONS = 4096  # of a batch in prediction: 64 rows of 64; more of them were no faster on a processor
ChooseWidths = Callable[[np.ndarray], Sequence[int]]  # lengths of rows, int, (rows,) → widths of batches, rising
ONLY_OUTPUT = "logits"  # name in features and predictions of what a model with one output says


class TaskBatches:
    """Shuffled batches (inputs, labels, weights) of features, by number: batch `step` depends on `seed` and `step`.

    Each pass over the rows deals them out anew; the last batch of a pass is filled up with rows of weight 0.

    Where tokens have labels, their weights are 1 / how many are in a batch on the average, and the loss is to be their
    sum. A mean over the tokens of each batch would give one among short sentences several times the weight of one among
    long ones, where batches are of like length.

    Args:
        features: rows with labels.
        batch_size: rows of a batch.
        seed: of the order.
        max_widths: most widths that batches have.
        group_by_length: batches hold rows of like length; if not, any rows, and more of them is padding.
    Attributes:
        steps_per_epoch: batches of a pass.
        mean_positions: of a batch, padding included.
    Raises:
        ValueError: there are no rows, or no labels.
    """

    def __init__(
        self,
        features: Features,
        batch_size: int,
        seed: int = 1,
        max_widths: int = MAX_WIDTHS,
        group_by_length: bool = True,
    ):
        if not len(features) or not features.labels:
            raise ValueError("Training needs rows with labels. Received: none. Give a table with examples.")
        self.features = features
        self.batch_size = batch_size
        self.seed = seed
        self.group_by_length = group_by_length
        lengths = features.lengths if group_by_length else deal_out(features.lengths, batch_size, self._make_rng(0))[1]
        self.widths = choose_widths(lengths, max_widths, features.sequence_length)
        self.steps_per_epoch = -(-len(features) // batch_size)
        self._weight = self.steps_per_epoch / (features.labelled_tokens or self.steps_per_epoch)
        self._plan = lru_cache(maxsize=2)(self._plan_epoch)
        positions = sum(width for _, width in self._plan(0)) * batch_size * features.sequences_per_row
        self.mean_positions = round(positions / self.steps_per_epoch)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, step: int) -> tuple[dict[str, np.ndarray], Any, Any]:
        epoch, number = divmod(step, self.steps_per_epoch)
        rows, width = self._plan(epoch)[number]
        filled = np.resize(rows, self.batch_size)
        weights = (np.arange(self.batch_size) < len(rows)) * np.float32(self._weight)
        labels, label_weights = make_labels(self.features, filled, width, weights)
        return make_inputs(self.features, filled, width), labels, label_weights

    def _plan_epoch(self, epoch: int) -> list[tuple[np.ndarray, int]]:
        lengths, rng = self.features.lengths, self._make_rng(epoch)
        if self.group_by_length:
            return plan_epoch(lengths, self.widths, self.batch_size, rng)
        batches, longest = deal_out(lengths, self.batch_size, rng)
        widths = [self.widths[place] for place in np.searchsorted(self.widths, longest)]
        return list(zip(batches, widths, strict=True))

    def _make_rng(self, epoch: int) -> np.random.Generator:
        return np.random.Generator(np.random.Philox(key=[self.seed, epoch]))


def task_dataset(
    features: Features,
    batch_size: int,
    seed: int = 1,
    start_step: int = 0,
    max_widths: int = MAX_WIDTHS,
    group_by_length: bool = True,
) -> grain.IterDataset:
    """Return endless batches (inputs, labels, weights); use with `steps_per_epoch`. See `TaskBatches`.

    Args:
        start_step: batches to leave out at the start, at no cost.
    """
    return read_batches(TaskBatches(features, batch_size, seed, max_widths, group_by_length), start_step)


def read_batches(batches: TaskBatches, start_step: int = 0) -> grain.IterDataset:
    """Return batches from a step on, for `model.fit`."""
    return grain.MapDataset.source(batches)[start_step:].to_iter_dataset(READING)


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


def read_tokenizer(model: Path) -> WordPieceTokenizer:
    """Return the tokenizer of a model directory; its `tokenizer_config.json` says whether it keeps case."""
    settings = model / "tokenizer_config.json"
    values = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    return WordPieceTokenizer.from_file(model / "vocab.txt", cased=not values.get("do_lower_case", True))


def _is_per_token(output) -> bool:
    return len(output.shape) > 1 and output.shape[1] is None  # (batch, length, ...); the length is not fixed
