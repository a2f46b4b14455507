"""Batches of a task for `model.fit`, grouped by length, and batched predictions."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import grain
import numpy as np

from keras_bert_flow.data.order import ROWS
from keras_bert_flow.data.packing import pack_batch, place_texts
from keras_bert_flow.data.pretraining import READING, require_equal_parts
from keras_bert_flow.tasks.core.task import IGNORED, Features

# Length bucketing: batch sequences of similar length, for little padding and few shapes to compile.

WIDTH_STEP = 8  # widths are multiples of this
MAX_WIDTHS = 8
# Cost of one more batch, relative to the largest batch. It matters little: from 1/8 to 1/128 of 4,096 positions, the
# positions of 2,000 sentences of SST-2 fall by 4 %, in 16 to 43 batches.
BATCH_COST = 1 / 32
# The same if shapes are compiled. At the cost above, there were 1 % fewer positions, but 11 shapes instead of 9.
SHAPE_COST = 1 / 8
STREAM_WIDTHS = 4  # number of widths for a stream of texts: the longest, its half, and so on


def choose_widths(lengths: np.ndarray, max_widths: int = MAX_WIDTHS, longest: int | None = None) -> tuple[int, ...]:
    """Choose the widths of batches (bucket boundaries) that minimise padding.

    Args:
        lengths: int, (rows,). Number of tokens per row.
        max_widths: maximum number of widths.
        longest: maximum width, since a model may have no position beyond it; None: no limit.
    Returns:
        Widths in ascending order, multiples of `WIDTH_STEP`, the last one possibly `longest`; it holds the longest row.
    """
    steps, counts = np.unique(-(-np.maximum(lengths, 1) // WIDTH_STEP), return_counts=True)
    totals = np.concatenate([[0], np.cumsum(counts)])  # cumulative rows by step
    # cost[j]: positions of the rows of the steps up to the j-th, with the best choice of widths so far; found by
    # dynamic programming over the second largest width.
    cost = steps * totals[1:]
    choices = [np.zeros(len(steps), dtype=int)]
    for _ in range(1, min(max_widths, len(steps))):
        before = np.concatenate([[0], cost[:-1]])  # cost of the steps below each one
        table = before[None, :] + steps[:, None] * (totals[1:, None] - totals[None, :-1])  # (last step, first step)
        table[np.triu_indices(len(steps), 1)] = np.iinfo(np.int64).max
        choices.append(table.argmin(axis=1))
        cost = table.min(axis=1)
    widths, last = [], len(steps) - 1
    for first in reversed(choices):
        if last < 0:
            break
        widths.append(int(steps[last]) * WIDTH_STEP)
        last = int(first[last]) - 1
    if longest is not None:
        widths[0] = min(widths[0], longest)
    return tuple(reversed(widths))


def choose_few_widths(
    lengths: np.ndarray, batch_positions: int, max_widths: int = MAX_WIDTHS, longest: int | None = None
) -> tuple[int, ...]:
    """Choose widths like `choose_widths`, but fewer for few rows, to save compilation.

    One width for less than a batch, two for one batch, and one more per doubling. Compiling a width takes longer than
    most models take for a batch, so a few texts are padded to the longest of them, and many texts get little padding.

    Args:
        batch_positions: token positions per batch.
    """
    batches = int(len(lengths) * lengths.max(initial=1)) // batch_positions  # as if all rows were the longest
    return choose_widths(lengths, min(max_widths, 1 + batches.bit_length()), longest)


def halve_widths(longest: int) -> tuple[int, ...]:
    """Return widths for a stream of rows of unknown length: the maximum length, its half, and so on.

    They do not depend on the rows, so later rows need no new shapes.
    """
    halves = {-(-longest // (WIDTH_STEP << power)) * WIDTH_STEP for power in range(1, STREAM_WIDTHS)}
    return (*sorted(width for width in halves if width < longest), longest)


def fit_widths(lengths: np.ndarray, widths: Sequence[int], batch_positions: int) -> Sequence[int]:
    """Select from fixed widths: all, or if one batch holds all rows, only the narrowest sufficient width."""
    width = widths[int(np.searchsorted(widths, lengths.max(initial=1)))]
    return (width,) if len(lengths) * width <= batch_positions else widths


def list_sizes(most: int) -> tuple[int, ...]:
    """Return the allowed numbers of rows of a batch, ascending: 1, 8, or a quarter, a half or all of its capacity.

    These are enough to need little filler for the remaining rows, and few enough to compile.
    """
    return tuple(sorted({size for size in (1, 8, most // 4, most // 2, most) if 1 <= size <= most}))


def fill_up(rows: np.ndarray, most: int) -> np.ndarray:
    """Repeat rows of a batch to fill it up to one of the sizes in `list_sizes`."""
    return np.resize(rows, min(size for size in list_sizes(max(1, most)) if size >= len(rows)))


def bucket_by_length(
    lengths: np.ndarray, widths: Sequence[int], batch_size: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Shuffle all rows into batches, grouped by length.

    The rows left over at one width go to the batches of the next, so all batches but one are full.

    Args:
        lengths: int, (rows,).
        widths: widths of the batches, ascending.
        batch_size: rows per batch.
        rng: determines the order and the batches.
    Returns:
        The row indices of each batch.
    """
    order = rng.permutation(len(lengths))
    places = np.searchsorted(widths, lengths[order])
    batches, left = [], order[:0]
    for place in range(len(widths)):
        rows = np.concatenate([left, order[places == place]])
        full = len(rows) - len(rows) % batch_size
        batches += list(rows[:full].reshape(-1, batch_size))
        left = rows[full:]
    if len(left):
        batches.append(left)
    return [batches[number] for number in rng.permutation(len(batches))]


def shuffle_into_batches(rows: int, batch_size: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Shuffle rows into batches regardless of their lengths; all batches but the last are full."""
    order = rng.permutation(rows)
    return [order[start : start + batch_size] for start in range(0, rows, batch_size)]


def plan_in_order(lengths: np.ndarray, widths: Sequence[int], batch_positions: int) -> list[tuple[np.ndarray, int]]:
    """Assign all rows to batches of few shapes, the narrowest first, for models that compile each shape.

    The rows, sorted by length, are split into batches with one of the widths and `list_sizes` rows, so that the number
    of positions is smallest. Positions added by `fill_up` count, and each batch costs `SHAPE_COST` of the largest one
    in addition.
    """
    order = np.argsort(lengths, kind="stable")
    fitting = np.asarray(widths)[np.searchsorted(widths, lengths[order])].tolist()
    sizes = {width: list_sizes(max(1, batch_positions // width)) for width in widths}
    cost, first = [0.0], []  # cost by number of rows; first row of the batch that ends with each row
    for last, width in enumerate(fitting):
        starts = [max(0, last + 1 - size) for size in sizes[width]]
        costs = [cost[start] + size * width for start, size in zip(starts, sizes[width], strict=True)]
        best = min(range(len(costs)), key=costs.__getitem__)
        first.append(starts[best])
        cost.append(costs[best] + SHAPE_COST * batch_positions)
    return _cut(order, first, fitting)


def plan_tightly(lengths: np.ndarray, batch_positions: int) -> list[tuple[np.ndarray, int]]:
    """Assign rows to batches like `plan_in_order`, each as wide as its longest row, for models that compile no shapes.

    The rows, sorted by length, are split so that the number of positions is smallest. Each batch costs `BATCH_COST` of
    the largest one in addition.
    """
    order = np.argsort(lengths, kind="stable")
    widths = np.maximum(lengths[order], 1)
    cost, first = np.zeros(len(order) + 1), np.zeros(len(order), dtype=int)  # as in `plan_in_order`
    for last, width in enumerate(widths.tolist()):
        start = max(0, last + 1 - max(1, batch_positions // width))
        costs = cost[start : last + 1] + width * np.arange(last + 1 - start, 0, -1)
        place = int(costs.argmin())
        first[last], cost[last + 1] = start + place, costs[place] + BATCH_COST * batch_positions
    return _cut(order, first, widths)


def _cut(
    order: np.ndarray, first: Sequence[int] | np.ndarray, widths: Sequence[int] | np.ndarray
) -> list[tuple[np.ndarray, int]]:
    """Return (rows, width) of each batch, from the position of the first row of the batch that ends with each row."""
    batches, stop = [], len(order)
    while stop:
        start = int(first[stop - 1])
        batches.append((order[start:stop], int(widths[stop - 1])))
        stop = start
    return batches[::-1]


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
    Example:
        >>> task, tokenizer = kbf.make_task("classification"), kbf.Tokenizer.from_preset("model")
        >>> reviews = task.read("reviews.tsv")
        >>> task = task.learn(reviews)
        >>> features = task.encode(tokenizer, reviews, sequence_length=16)
        >>> classifier = kbf.TextClassifier.from_preset("model", labels=task.labels)
        >>> outputs = kbf.predict_features(classifier, features)
        >>> task.score(reviews, task.decode(outputs, features, reviews))["accuracy"] <= 1
        True
    """
    if not len(features):
        return {}
    outputs = model.output if isinstance(model.output, Mapping) else {ONLY_OUTPUT: model.output}
    lengths = features.lengths
    answers: dict[str, list[Any]] = {name: [None] * len(features) for name in outputs}
    # An output per token is (batch, length, ...), whose length is not fixed.
    of_tokens = {
        name: not features.has_axis and len(output.shape) > 1 and output.shape[1] is None
        for name, output in outputs.items()
    }
    if choose is None:
        choose = partial(
            choose_few_widths,
            batch_positions=batch_positions,
            max_widths=max_widths,
            longest=features.sequence_length,
        )
    for rows, found in predict_batches(model, features, choose, batch_positions, follow):
        for name, values in found.items():
            for row, answer in zip(rows, values, strict=True):
                answers[name][row] = answer[: lengths[row]] if of_tokens[name] else answer
    return {name: found if of_tokens[name] else np.stack(found) for name, found in answers.items()}


def predict_batches(
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


# Shuffled batches of a task's features for `model.fit`, with random access by index.


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
            and its rows are sorted by length, for `layers.attention`.
        plain_weights: weight 1 for each real row or labelled token, for the means of an evaluation.
        packs: put the texts of a batch, or of a part, into as few rows of `sequence_length` as they need. Losses are as
            before; tokens, and not rows, must have the labels.
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
        packs: bool = False,
    ):
        if not len(features) or not features.labels:
            raise ValueError("Training needs rows with labels. Received: none. Give a table with examples.")
        if packs and any(isinstance(values, np.ndarray) for values in features.labels.values()):
            raise ValueError("Packed texts must have a label for each token. Received: one for each row. Do not pack.")
        require_equal_parts(batch_size, accumulate_batches)
        self.features = features
        self.batch_size = batch_size
        self.seed = seed
        self.group_by_length = group_by_length
        self.accumulate_batches = accumulate_batches
        self.compiles_shapes = compiles_shapes
        self.plain_weights = plain_weights
        self.packs = packs
        self.steps_per_epoch = -(-len(features) // batch_size)
        self._lengths, self._labelled_tokens = features.lengths, features.labelled_tokens
        self._groups = choose_widths(self._lengths, max_widths, features.sequence_length) if group_by_length else ()
        self._plan = lru_cache(maxsize=2)(self._plan_epoch)
        parts = [self._take_parts(0, place) for place in range(self.steps_per_epoch)]
        rows = np.array([len(part) for batch, _ in parts for part, _ in batch])
        longest = np.array([self._lengths[part].max() for batch, _ in parts for part, _ in batch])
        self.widths = self._groups or choose_widths(longest, max_widths, features.sequence_length)
        widths = np.take(self.widths, np.searchsorted(self.widths, longest)) if compiles_shapes else longest
        positions = int((widths * rows).sum()) * features.sequences_per_row
        if packs:
            batches = [part[is_real] for batch, _ in parts for part, is_real in batch]
            positions = sum(int(np.prod(self._find_packed_shape(batch)[0])) for batch in batches)
        self.mean_positions = round(positions / self.steps_per_epoch)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, number: int) -> tuple[dict[str, np.ndarray], Any, Any]:
        step, part = divmod(number, self.accumulate_batches)
        parts, weight = self._take_parts(*divmod(step, self.steps_per_epoch))
        rows, is_real = parts[part]
        if self.packs:
            return self._pack(rows[is_real], weight)
        width = int(self._lengths[rows].max())
        if self.compiles_shapes:
            width = self.widths[int(np.searchsorted(self.widths, width))]
        labels, label_weights = make_labels(self.features, rows, width, is_real * np.float32(weight))
        return make_inputs(self.features, rows, width), labels, label_weights

    def _pack(self, rows: np.ndarray, weight: float) -> tuple[dict[str, np.ndarray], Any, Any]:
        shape, places = self._find_packed_shape(rows)
        lengths = self._lengths[rows]
        width, weights = int(lengths.max(initial=1)), np.full(len(rows), weight, np.float32)
        batch = make_inputs(self.features, rows, width), *make_labels(self.features, rows, width, weights)
        return pack_batch(batch, lengths, places, shape)

    def _find_packed_shape(self, rows: np.ndarray) -> tuple[tuple[int, int], Any]:
        """Return the shape of packed rows, of few numbers of rows where each shape is compiled, and their places."""
        row_length = self.features.sequence_length or int(self._lengths.max())
        places = place_texts(self._lengths[rows], row_length)
        count = 1 + max((row for row, _, _ in places), default=0)
        if self.compiles_shapes:
            count = min(size for size in list_sizes(self.batch_size) if size >= count)
        return (count, row_length), places

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
        rng = np.random.Generator(np.random.Philox(key=[self.seed, epoch]))
        if self.group_by_length:
            return bucket_by_length(self._lengths, self._groups, self.batch_size, rng)
        return shuffle_into_batches(len(self.features), self.batch_size, rng)


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
    Example:
        >>> task, tokenizer = kbf.make_task("classification"), kbf.Tokenizer.from_preset("model")
        >>> reviews = task.read("reviews.tsv")
        >>> task = task.learn(reviews)
        >>> features = task.encode(tokenizer, reviews, sequence_length=16)
        >>> batches = kbf.task_dataset(features, batch_size=4)
        >>> inputs, labels, weights = next(iter(batches))
        >>> labels.shape
        (4,)
    """
    options = (max_widths, group_by_length, accumulate_batches, compiles_shapes)
    dataset = read_batches(TaskBatches(features, batch_size, seed, *options), start_step)
    # Attributes, as Grain datasets are made by functions; `ModelWithHead` looks for them. The first makes the same
    # batches for `evaluate`, in which no weight depends on the rest of its batch.
    dataset.plain_weights = lambda: read_batches(
        TaskBatches(features, batch_size, seed, *options, plain_weights=True), start_step
    )
    dataset.steps_per_epoch = -(-len(features) // batch_size) * accumulate_batches
    return dataset


def read_batches(batches: TaskBatches, start_step: int = 0) -> grain.IterDataset:
    """Return the dataset of batches from a step on, for `model.fit`."""
    return grain.MapDataset.source(batches)[start_step * batches.accumulate_batches :].to_iter_dataset(READING)
