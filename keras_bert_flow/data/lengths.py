"""Put sequences of like length into one batch: little is padding, and few widths are all that a compiler sees."""

from collections.abc import Sequence

import numpy as np

WIDTH_STEP = 8  # widths are multiples of this
MAX_WIDTHS = 8
# What one more batch costs, in largest batches. It matters little: from an eighth to a 128th of 4,096 positions, those
# of 2,000 sentences of SST-2 fall by 4 %, in 16 to 43 batches.
BATCH_COST = 1 / 32
# The same, where shapes are compiled. With the cost of the other, there were 1 % fewer positions, and 11 shapes for 9.
SHAPE_COST = 1 / 8
STREAM_WIDTHS = 4  # halves of the longest: a stream of any texts is asked in so many


def choose_widths(lengths: np.ndarray, max_widths: int = MAX_WIDTHS, longest: int | None = None) -> tuple[int, ...]:
    """Choose the widths of batches so that the fewest positions are padding.

    Args:
        lengths: int, (rows,). Tokens of each row.
        max_widths: most widths to choose.
        longest: no width is greater, as a model may have no position beyond it; None: there is no such limit.
    Returns:
        Widths, rising, multiples of `WIDTH_STEP`, or at last `longest`; the last one holds the longest row.
    """
    steps, counts = np.unique(-(-np.maximum(lengths, 1) // WIDTH_STEP), return_counts=True)
    totals = np.concatenate([[0], np.cumsum(counts)])  # rows of the first so many steps
    # cost[j]: positions of the rows of the first j steps, in the best choice of so many widths; source: dynamic
    # programming over the last width but one.
    cost = steps * totals[1:]
    choices = [np.zeros(len(steps), dtype=int)]
    for _ in range(1, min(max_widths, len(steps))):
        before = np.concatenate([[0], cost[:-1]])  # of the steps below each one
        table = before[None, :] + steps[:, None] * (totals[1:, None] - totals[None, :-1])  # (last step, first of it)
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
    """Choose widths as `choose_widths` does: one for less than a batch, two for one, and one more for each doubling.

    A compiler takes longer for a width than most models for a batch: a few texts are padded to the longest of them, and
    only where there is much to do, little of it is padding.

    Args:
        batch_positions: of a batch.
    """
    batches = int(len(lengths) * lengths.max(initial=1)) // batch_positions  # if all rows were as long as the longest
    return choose_widths(lengths, min(max_widths, 1 + batches.bit_length()), longest)


def halve_widths(longest: int, max_widths: int = STREAM_WIDTHS) -> tuple[int, ...]:
    """Return widths for rows that nobody has seen yet: the longest that there may be, its half, and so on.

    They do not depend on the rows, so that what comes later meets no other shapes.
    """
    halves = {-(-longest // (WIDTH_STEP << power)) * WIDTH_STEP for power in range(1, max_widths)}
    return (*sorted(width for width in halves if width < longest), longest)


def fit_widths(lengths: np.ndarray, widths: Sequence[int], batch_positions: int) -> Sequence[int]:
    """Return the widths to use of fixed ones: all, or where one batch holds all rows the narrowest that does."""
    width = widths[int(np.searchsorted(widths, lengths.max(initial=1)))]
    return (width,) if len(lengths) * width <= batch_positions else widths


def list_sizes(most: int) -> tuple[int, ...]:
    """Return how many rows a batch may have, rising: few, or a quarter, a half or all of what it holds at most.

    Enough for what is left over to be filled up little, and few enough to be compiled.
    """
    return tuple(sorted({size for size in (1, 8, most // 4, most // 2, most) if 1 <= size <= most}))


def fill_up(rows: np.ndarray, most: int) -> np.ndarray:
    """Return the rows of a batch that holds so many at most, and some of them again, up to one of the few sizes."""
    return np.resize(rows, min(size for size in list_sizes(max(1, most)) if size >= len(rows)))


def deal_by_length(
    lengths: np.ndarray, widths: Sequence[int], batch_size: int, rng: np.random.Generator
) -> list[np.ndarray]:
    """Deal all rows out to batches at random, those of like length together.

    What is left over from the batches of one width goes to those of the next, so all batches but one are full.

    Args:
        lengths: int, (rows,).
        widths: of batches, rising.
        batch_size: rows of a batch.
        rng: another one gives another order, and other batches.
    Returns:
        The rows of each batch.
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
    """Deal so many rows out to batches at random, whatever their lengths; all but the last are full."""
    order = rng.permutation(rows)
    return [order[start : start + batch_size] for start in range(0, rows, batch_size)]


def plan_in_order(lengths: np.ndarray, widths: Sequence[int], batch_positions: int) -> list[tuple[np.ndarray, int]]:
    """Deal all rows out to batches of few shapes, the narrowest first; for what compiles each shape.

    Of all ways to cut the rows, sorted by length, into batches of one of the widths and of `list_sizes` rows, it takes
    the one with the fewest positions, those that `fill_up` adds included, where a batch counts `SHAPE_COST` of the
    largest besides.
    """
    order = np.argsort(lengths, kind="stable")
    fitting = np.asarray(widths)[np.searchsorted(widths, lengths[order])].tolist()
    sizes = {width: list_sizes(max(1, batch_positions // width)) for width in widths}
    cost, first = [0.0], []  # of the first so many rows; of the batch that ends with a row
    for last, width in enumerate(fitting):
        starts = [max(0, last + 1 - size) for size in sizes[width]]
        costs = [cost[start] + size * width for start, size in zip(starts, sizes[width], strict=True)]
        best = min(range(len(costs)), key=costs.__getitem__)
        first.append(starts[best])
        cost.append(costs[best] + SHAPE_COST * batch_positions)
    return _cut(order, first, fitting)


def plan_tightly(lengths: np.ndarray, batch_positions: int) -> list[tuple[np.ndarray, int]]:
    """Deal rows out as `plan_in_order` does, each batch as wide as its longest row; for what compiles no shapes.

    Of all ways to cut the rows, sorted by length, it takes the one with the fewest positions, where a batch counts
    `BATCH_COST` of the largest besides.
    """
    order = np.argsort(lengths, kind="stable")
    widths = np.maximum(lengths[order], 1)
    cost, first = np.zeros(len(order) + 1), np.zeros(len(order), dtype=int)  # of the first so many rows; of a batch
    for last, width in enumerate(widths.tolist()):
        start = max(0, last + 1 - max(1, batch_positions // width))
        costs = cost[start : last + 1] + width * np.arange(last + 1 - start, 0, -1)
        place = int(costs.argmin())
        first[last], cost[last + 1] = start + place, costs[place] + BATCH_COST * batch_positions
    return _cut(order, first, widths)


def _cut(
    order: np.ndarray, first: Sequence[int] | np.ndarray, widths: Sequence[int] | np.ndarray
) -> list[tuple[np.ndarray, int]]:
    """Return (rows, width) of each batch, from the place of the first row of the batch that ends with each row."""
    batches, stop = [], len(order)
    while stop:
        start = int(first[stop - 1])
        batches.append((order[start:stop], int(widths[stop - 1])))
        stop = start
    return batches[::-1]
