"""Exact nearest-neighbour search by cosine, with the result of a search in float64 over all vectors."""

from collections.abc import Sequence

import numpy as np

ROWS_AT_ONCE = 16_384  # with 256 queries their cosines are 16 MB
QUERIES_AT_ONCE = 256
ROUNDING = 2.0**-24  # relative, of float32


def unit_length(vectors: np.ndarray) -> np.ndarray:
    """Normalise each vector, (..., hidden), to length 1, float32; zero vectors stay 0."""
    exact = np.asarray(vectors, dtype=np.float64)
    lengths = np.linalg.norm(exact, axis=-1, keepdims=True)
    return (exact / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def find_nearest(
    queries: np.ndarray, vectors: np.ndarray, top: int, rows_at_once: int = ROWS_AT_ONCE
) -> tuple[np.ndarray, np.ndarray]:
    """Return the indices of the `top` nearest vectors of each query and their cosines, nearest first.

    Products in float32 choose a few candidates, with a margin for rounding; these are measured in float64, each on its
    own. So the result does not depend on `rows_at_once`, and equal vectors are in index order.

    Args:
        queries: float32, (queries, hidden), of length 1 or 0; see `unit_length`.
        vectors: the same, (rows, hidden), may be memory-mapped; `rows_at_once` rows are read at a time.
        top: how many to return; all if there are fewer.
    Returns:
        int64 and float64, (queries, min(top, rows)).
    Raises:
        ValueError: `top` is below 1.
    """
    if top < 1:
        raise ValueError(f"`top` must be at least 1. Received: {top}. Ask for one hit or more.")
    blocks = [
        _search_block(queries[start : start + QUERIES_AT_ONCE], vectors, min(top, len(vectors)), rows_at_once)
        for start in range(0, len(queries), QUERIES_AT_ONCE)
    ]
    found = [pair for block in blocks for pair in block]
    shape = (len(queries), min(top, len(vectors)))
    places = np.array([places for places, _ in found], dtype=np.int64).reshape(shape)
    return places, np.array([cosines for _, cosines in found], dtype=np.float64).reshape(shape)


def _search_block(
    queries: np.ndarray, vectors: np.ndarray, top: int, rows_at_once: int
) -> Sequence[tuple[np.ndarray, np.ndarray]]:
    best = [(np.zeros(0, np.int64), np.zeros(0)) for _ in queries]
    # A product in float32 is off by at most `hidden` roundings of 1, both for the vector kept and the one left out. The
    # lengths are off by one rounding each.
    slack = 2 * (queries.shape[1] + 4) * ROUNDING
    for start in range(0, len(vectors), rows_at_once):
        part = np.asarray(vectors[start : start + rows_at_once])
        rough = queries @ part.T  # (queries, rows)
        for number, cosines in enumerate(rough):
            places, known = best[number]
            least = known[-1] if len(known) == top else -np.inf
            if len(cosines) >= top:
                least = max(least, np.partition(cosines, -top)[-top])
            rows = np.flatnonzero(cosines >= least - slack)
            exact = _measure(queries[number], part[rows])
            best[number] = _keep_best(np.append(places, rows + start), np.append(known, exact), top)
    return best


def _measure(query: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return cosines in float64; unlike a matrix product, bit-identical for equal rows."""
    query, rows = query.astype(np.float64), rows.astype(np.float64)
    lengths = np.sqrt((rows * rows).sum(axis=1) * (query * query).sum())
    return (rows * query).sum(axis=1) / np.where(lengths == 0, 1, lengths)


def _keep_best(places: np.ndarray, cosines: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((places, -cosines))[:top]
    return places[order], cosines[order]
