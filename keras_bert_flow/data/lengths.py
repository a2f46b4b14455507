"""Length bucketing: batch sequences of similar length, for little padding and few shapes to compile."""

from collections.abc import Sequence

import numpy as np

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


def halve_widths(longest: int, max_widths: int = STREAM_WIDTHS) -> tuple[int, ...]:
    """Return widths for a stream of rows of unknown length: the maximum length, its half, and so on.

    They do not depend on the rows, so later rows need no new shapes.
    """
    halves = {-(-longest // (WIDTH_STEP << power)) * WIDTH_STEP for power in range(1, max_widths)}
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


def deal_by_length(
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


def deal_at_random(rows: int, batch_size: int, rng: np.random.Generator) -> list[np.ndarray]:
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
