"""Pre-training datasets for `model.fit`: the order is a function of (seed, epoch, index), so resuming is a slice."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import grain
import numpy as np

from keras_bert_flow.data.order import DynamicMasking, Shuffled
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.text.objectives.objective import Batch, Features, Objective, find_objective

# Gradient accumulation: split batches into parts whose mean gradient is exactly that of the whole batch.


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
        divided = {}
        for name, weight in weights.items():
            total = self._add_up(float(weight.sum(dtype="float64")))
            divided[name] = (weight * (self._parts / total)).astype("float32") if total else weight
        return [take_part((x, y, divided), part, self.max_fan_out) for part in range(self.max_fan_out)]


def split_batches(dataset: grain.IterDataset, count: int, *share: Any) -> grain.IterDataset:
    """Split each batch of a dataset into consecutive parts; `share` are the other arguments of `SplitBatch`."""
    return grain.experimental.FlatMapIterDataset(dataset, SplitBatch(count, *share))


def take_part(batch: tuple[dict, dict, dict], part: int, count: int) -> Any:
    """Return the rows of one of `count` equal parts of a batch.

    Raises:
        ValueError: the rows do not divide evenly.
    """
    for group in batch:
        for values in group.values():
            require_equal_parts(len(values), count)
    return tuple({name: np.split(values, count)[part] for name, values in group.items()} for group in batch)


def require_equal_parts(batch_size: int, count: int) -> None:
    """Raise ValueError unless a batch splits into `count` equal parts."""
    if batch_size % count:
        raise ValueError(
            f"A batch must split into equal parts. Received: {batch_size} sequences for {count} parts. "
            f"Try {batch_size // count * count or count} sequences."
        )


# A record that is still remote takes a network round trip, so many batches are read at a time.
READING_ELSEWHERE = grain.ReadOptions(num_threads=16, prefetch_buffer_size=32)
READING = grain.ReadOptions(num_threads=1, prefetch_buffer_size=16)  # one thread decodes 20,000 records a second
MASKINGS = ("static", "dynamic")


def pretraining_dataset(
    records: str | Path | PretrainingRecords,
    batch_size: int,
    seed: int = 1,
    start_step: int = 0,
    masking: str = "static",
    accumulate_batches: int = 1,
    share: tuple[int, int] = (0, 1),
    bag_of_words: bool = False,
    masked_fraction: float | None = None,
    objective: Objective | None = None,
    masked_fraction_end: tuple[float, int] | None = None,
    masked_fraction_least: float | None = None,
) -> grain.IterDataset:
    """Return infinite shuffled batches (x, y, sample_weight) for `fit`.

    Its `steps_per_epoch` is the number of batches, or parts of them, of one pass over the records, and what `fit` takes
    unless it is given another. The batches fit the model of the records' objective, such as a `MaskedLM` for `mlm`.

    Args:
        records: a published folder, or one already opened.
        batch_size: sequences per batch.
        seed: of the order and of dynamic masks; each epoch has a different order.
        start_step: number of batches to skip at the start, at no cost.
        masking: `static`, the masks of the records, or `dynamic`, new masks in each epoch.
        accumulate_batches: number of parts to split each batch into, for an optimizer that accumulates that many
            batches and losses with sum reduction (`models.defaults.token_loss`).
        share: (number, count): which of `count` equal contiguous shards of each batch to read; the others are not read.
        bag_of_words: add labels for a `BagOfWordsPretrainer`: the masked tokens, and if records are cut the rest of
            the document. Frequent tokens have less weight, for which the records are
            read.
        masked_fraction: masked fraction of dynamic masks. Default: that of the records.
        objective: objective of the model. Default: that of the records.
        masked_fraction_end: (fraction, step): the masked fraction of dynamic masks changes linearly from
            `masked_fraction` to this one at the step, and stays. Source: Ankner et al. 2024, arXiv:2305.15096.
        masked_fraction_least: masked diffusion: each sequence draws its masked fraction from this one to
            `masked_fraction`; not with `masked_fraction_end`. See `DynamicMasking`.
    Raises:
        ValueError: `masking` is unknown, the records do not tell how they were masked, or a batch does not divide into
            equal shares.
    Example:
        >>> batches = kbf.pretraining_dataset("records", batch_size=4)
        >>> inputs, labels, weights = next(iter(batches))
        >>> inputs["token_ids"].shape, sorted(labels)
        ((4, 16), ['mlm', 'nsp'])
    """
    records = records if isinstance(records, PretrainingRecords) else PretrainingRecords(records)
    if masking not in MASKINGS:
        raise ValueError(f"`masking` must be one of {', '.join(MASKINGS)}. Received: masking={masking!r}.")
    if masking == "dynamic":
        dataset = grain.MapDataset.source(Shuffled(records, seed, numbered=True))
        rule, end = records.read_masking_rule(masked_fraction), None
        if masked_fraction_end is not None:
            fraction, step = masked_fraction_end
            most = records.read_masking_rule(max(rule.masked_fraction, fraction)).max_predictions
            rule, end = replace(rule, max_predictions=most), (fraction, step * batch_size)
        dataset = dataset.map_with_index(DynamicMasking(rule, len(records), seed, end, masked_fraction_least))
    else:
        dataset = grain.MapDataset.source(Shuffled(records, seed))
    chosen = objective or find_objective(records.objective)
    dataset = dataset.map_with_index(lambda place, features: chosen.draw(features, seed, place))
    to_batch = chosen.make_batch
    if bag_of_words:
        to_batch = partial(to_words_batch, chosen, records.label_weights, records.mean_context)
    number, count = share
    if batch_size % count:
        raise ValueError(f"A batch must divide into equal shares. Received: batch_size={batch_size}, {count} shares.")
    batches = dataset.batch(batch_size // count)[number::count].map(to_batch)
    batches = batches.map_with_index(lambda step, batch: chosen.weigh_step(batch, step))
    batches = batches[start_step:].to_iter_dataset(READING if records.is_here else READING_ELSEWHERE)
    batches = split_batches(batches, accumulate_batches) if accumulate_batches > 1 else batches
    # An attribute, as Grain datasets are made by functions; `ModelWithHead` looks for it.
    batches.steps_per_epoch = -(-len(records) // batch_size) * accumulate_batches
    return batches


def ordered_batches(
    records: PretrainingRecords,
    batch_size: int,
    limit: int,
    share: tuple[int, int] = (0, 1),
    objective: Objective | None = None,
) -> Iterator[tuple]:
    """Yield the first `limit` records in order, for evaluation; the last batch is padded with rows of weight 0.

    `share` and `objective` are as for `pretraining_dataset`. Every share has the same number of batches and rows.
    """
    total, (number, count) = min(limit, len(records)), share
    size, objective = batch_size // count, objective or find_objective(records.objective)
    for start in range(number * size, number * size + total, batch_size):
        places = [min(start + offset, total - 1) for offset in range(size)]
        rows = [objective.draw(records[place], "held out", place) for place in places]
        batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        is_real = (np.arange(start, start + size) < total).astype("float32")
        x, y, weights = objective.make_batch(batch)
        yield x, y, {name: (weight.T * is_real).T for name, weight in weights.items()}


def to_words_batch(objective: Objective, label_weights: np.ndarray, mean_context: float, features: Features) -> Batch:
    """Convert features to the model batch of an objective with bag-of-words labels.

    Args:
        label_weights: weight of each token as a label, (vocabulary,). Adds `words` labels and weights, (batch,
            masks_per_sequence + context).
        mean_context: number of context tokens that weigh as much as all masked tokens of a row.
    """
    batch = objective.make_batch(features)
    context = (features["context_ids"], features["context_weights"] / mean_context) if "context_ids" in features else ()
    return add_bag_of_words(batch, label_weights, *context)


def add_bag_of_words(
    batch: Batch,
    label_weights: np.ndarray,
    context_ids: np.ndarray | None = None,
    context_shares: np.ndarray | None = None,
) -> Batch:
    """Add weighted labels for the output `words`: the masked tokens and the context tokens.

    Args:
        batch: inputs, labels and sample weights, with those of `mlm`.
        label_weights: weight of each token as a label, (vocabulary,).
        context_ids: further labels, (batch, context).
        context_shares: weight of each of them relative to all masked tokens of its row, (batch, context).
    """
    x, y, weights = batch
    labels, counts = y["mlm"], weights["mlm"]
    if context_ids is not None:
        labels = np.concatenate([labels, context_ids.astype("int32")], axis=1)
        counts = np.concatenate([counts, context_shares * counts.sum(axis=1, keepdims=True)], axis=1)
    return x, y | {"words": labels}, weights | {"words": counts * label_weights[labels]}
