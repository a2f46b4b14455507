"""Retrieval ranks: rank the second text of each pair among all second texts, by cosine with the first."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its submodules are loaded when they are used

ROWS_AT_ONCE = 512  # with 100,000 candidates, 400 MB of cosines


@dataclass(frozen=True)
class Ranking:
    """Rank of each pair's second text, int and float64, (pairs,).

    Attributes:
        ranks: rank of the pair's own second text, from 1. Ties are in table order, so that the mean over pairs whose
            second texts are tied is that of a random order.
        nearest: index of the pair whose second text ranks first.
        cosines: cosine of the pair.
        nearest_cosines: cosine with the text that ranks first.
    """

    ranks: np.ndarray
    nearest: np.ndarray
    cosines: np.ndarray
    nearest_cosines: np.ndarray


def number_texts(texts: Sequence[str]) -> np.ndarray:
    """Number texts so that equal strings have the same number, int32, (texts,)."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(text, len(numbers)) for text in texts], dtype=np.int32)


def rank_partners(vectors: np.ndarray, numbers: np.ndarray) -> Ranking:
    """Rank each pair's second text among all distinct second texts.

    A second text is not a candidate for a pair where it would not be wrong: if it is the pair's first text, or in
    another pair with a text of this one.

    Args:
        vectors: float, (pairs, 2, hidden). Vectors of both texts.
        numbers: int, (pairs, 2). See `number_texts`.
    """
    parts = []
    for cosines, own, places in _compare(vectors, numbers):
        rows = np.arange(len(own))
        mine = cosines[rows, own][:, None]
        is_before = (cosines > mine) | ((cosines == mine) & (np.arange(cosines.shape[1]) < own[:, None]))
        first = cosines.argmax(axis=1)
        parts.append((1 + is_before.sum(axis=1), places[first], mine[:, 0], cosines[rows, first]))
    return Ranking(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def partner_loss(vectors: np.ndarray, numbers: np.ndarray, scale: float) -> float:
    """Return the mean cross-entropy of finding each second text among all, in nats; arguments: see `rank_partners`."""
    losses = [
        scipy.special.logsumexp(scale * cosines, axis=1) - scale * cosines[np.arange(len(own)), own]
        for cosines, own, _ in _compare(vectors, numbers)
    ]
    return float(np.concatenate(losses).mean())


def pair_cosines(vectors: np.ndarray) -> np.ndarray:
    """Return the cosine of each pair of vectors, (pairs,), from (pairs, 2, hidden)."""
    units = _unit_length(vectors)
    return (units[:, 0] * units[:, 1]).sum(axis=-1).clip(-1, 1)


def _compare(vectors: np.ndarray, numbers: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield, for blocks of pairs, the cosines with every candidate, and the column of each pair's own.

    Yields:
        cosines, (pairs, candidates), -inf where one is left out; own, the column of each pair's second text; places,
        (candidates,), the first pair in which each candidate occurs.
    """
    units = _unit_length(vectors)
    places = np.sort(np.unique(numbers[:, 1], return_index=True)[1])
    columns = {int(number): column for column, number in enumerate(numbers[places, 1])}
    beside = defaultdict(set)  # first text → columns of its second texts
    for first, second in numbers.tolist():
        beside[first].add(columns[second])
    # Equal vectors are multiplied once: in a matrix product, equal columns may be rounded differently.
    candidates, column_of = np.unique(units[places, 1], axis=0, return_inverse=True)
    column_of = column_of.reshape(-1)  # (candidates, 1) in NumPy 2.0
    for start in range(0, len(numbers), ROWS_AT_ONCE):
        chosen = numbers[start : start + ROWS_AT_ONCE].tolist()
        cosines = (units[start : start + ROWS_AT_ONCE, 0] @ candidates.T).clip(-1, 1)[:, column_of]
        own = np.array([columns[second] for _, second in chosen])
        for row, (first, second) in enumerate(chosen):
            left_out = beside[first] | beside.get(second, set()) | {columns.get(first, own[row])}
            cosines[row, list(left_out - {own[row]})] = -np.inf
        yield cosines, own, places


def _unit_length(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.where(lengths == 0, 1, lengths)
