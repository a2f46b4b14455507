"""Model inputs, labels and batched predictions for the features of a task."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from keras_bert_flow.data.lengths import MAX_WIDTHS, choose_few_widths, fill_up, plan_in_order, plan_tightly
from keras_bert_flow.tasks.core.features import IGNORED, Features

BATCH_POSITIONS = 4096  # per batch in prediction: 64 rows of 64 tokens; larger batches were no faster on a CPU
ChooseWidths = Callable[[np.ndarray], Sequence[int]]  # lengths of rows, int, (rows,) → widths of batches, ascending
ONLY_OUTPUT = "logits"  # key in labels and predictions of a model with a single output


def make_inputs(features: Features, rows: np.ndarray, width: int) -> dict[str, np.ndarray]:
    """Return the model inputs of some rows, int32, (rows, width); with `has_axis` (rows, sequences_per_row, width)."""
    group = features.sequences_per_row
    sequences = (rows[:, None] * group + np.arange(group)).reshape(-1)
    token_ids, segment_ids, padding_mask = np.zeros((3, len(sequences), width), np.int32)
    for place, sequence in enumerate(sequences):
        ids = features.token_ids[int(sequence)]
        token_ids[place, : len(ids)] = ids
        segment_ids[place, features.first_lengths[sequence] : len(ids)] = 1
        padding_mask[place, : len(ids)] = 1
    inputs = {"token_ids": token_ids, "segment_ids": segment_ids, "padding_mask": padding_mask}
    if not features.has_axis:
        return inputs
    return {name: ids.reshape(len(rows), group, width) for name, ids in inputs.items()}


def make_labels(features: Features, rows: np.ndarray, width: int, weights: np.ndarray) -> tuple[Any, Any]:
    """Return the labels and weights of some rows: arrays, or dicts of them for a model with several outputs.

    Args:
        weights: float32, (rows,). If tokens have labels, those that are `IGNORED` get weight 0.
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
    """Predict for all rows, in batches of similar length.

    Args:
        model: has `output` and `predict_on_batch`. If its `compiles_shapes` is false, as for models of this package on
            PyTorch and TensorFlow, no row is padded beyond the longest of its batch, and no batch beyond its rows.
        follow: takes the batches and yields them again; it may show progress, or raise to stop.
        choose: computes batch widths from the lengths of the rows, for a model that compiles each shape. Default: the
            widths with the least padding, as many as are worth compiling, at most `max_widths`.
    Returns:
        Output name → float32, (rows, ...), or for outputs per token a list of (length, ...).
    """
    if not len(features):
        return {}
    outputs = model.output if isinstance(model.output, Mapping) else {ONLY_OUTPUT: model.output}
    lengths = features.lengths
    answers: dict[str, list[Any]] = {name: [None] * len(features) for name in outputs}
    of_tokens = {name: not features.has_axis and _is_per_token(output) for name, output in outputs.items()}
    if choose is None:
        choose = partial(
            choose_few_widths,
            batch_positions=batch_positions,
            max_widths=max_widths,
            longest=features.sequence_length,
        )
    for rows, found in ask_in_batches(model, features, choose, batch_positions, follow):
        for name, values in found.items():
            for row, answer in zip(rows, values, strict=True):
                answers[name][row] = answer[: lengths[row]] if of_tokens[name] else answer
    return {name: found if of_tokens[name] else np.stack(found) for name, found in answers.items()}


def ask_in_batches(
    model,
    features: Any,
    choose: ChooseWidths,
    batch_positions: int,
    follow: Callable = iter,
    make: Callable = make_inputs,
) -> Iterator[tuple[np.ndarray, dict[str, np.ndarray]]]:
    """Yield row indices and predictions, output name → float32, for each batch, the narrowest first.

    Args:
        features: `Features`, or another object with `lengths` that `make` can read.
        choose, follow: as for `predict_features`.
        make: makes the model inputs, like `make_inputs`.
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
