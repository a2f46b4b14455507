"""Streaming statistics in bounded memory: lengths, repeated items, and the range of shares by chance."""

import hashlib
from collections import Counter

import numpy as np

SIGMAS = 5.0  # a range is exceeded by chance once in 1.7 million
MOST_REMEMBERED = 500_000  # digests, about 60 MB


class Lengths:
    """Histogram of lengths in buckets of doubling width: 0, 1, 2, 3 to 4, 5 to 8 and so on."""

    def __init__(self):
        self._buckets: Counter = Counter()
        self.count = self.total = self.longest = 0

    def add(self, length: int) -> None:
        self._buckets[(length - 1).bit_length() if length else -1] += 1
        self.count += 1
        self.total += length
        self.longest = max(self.longest, length)

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def rows(self) -> list[list[int]]:
        """Return [lowest, highest, count] of each bucket, from the first to the last that is not empty."""
        if not self._buckets:
            return []
        buckets = range(min(self._buckets), max(self._buckets) + 1)
        return [[*_borders(bucket), self._buckets[bucket]] for bucket in buckets]


class Repeats:
    """Share of repeated items: exact up to `limit` different ones, then an estimate.

    Past the limit, only items whose digest is divisible by 2, then by 4 and so on are tracked: a random choice of
    items, each with all of its copies, the same for any order of the stream. Source: Wegman's adaptive sampling, in
    Flajolet 1990, "On adaptive sampling".
    """

    def __init__(self, limit: int = MOST_REMEMBERED):
        self._limit = limit
        self._counts: dict[int, int] = {}
        self._step = 1

    def add(self, item: bytes) -> None:
        digest = int.from_bytes(hashlib.blake2b(item, digest_size=8).digest(), "little")
        if digest % self._step:
            return
        self._counts[digest] = self._counts.get(digest, 0) + 1
        while len(self._counts) > self._limit:
            self._step *= 2
            self._counts = {kept: count for kept, count in self._counts.items() if kept % self._step == 0}

    @property
    def is_exact(self) -> bool:
        return self._step == 1

    @property
    def repeated_share(self) -> float:
        followed = sum(self._counts.values())
        return 1 - len(self._counts) / followed if followed else 0.0


def chance_range(probability: float, draws: float) -> tuple[float, float]:
    """Return the lowest and highest share in this many independent draws, exceeded once in 1.7 million."""
    draws = round(draws)
    if not draws:
        return 0.0, 1.0
    from scipy.stats import binom, norm  # takes half of the start-up time of any command

    tail = norm.sf(SIGMAS)
    low, high = binom.ppf(tail, draws, probability), binom.isf(tail, draws, probability)
    return max(0.0, float(low)) / draws, float(high) / draws  # a quantile of probability 0 is -1


def even_histogram(counts: np.ndarray, bars: int = 8) -> list[list[int]]:
    """Sum counts of the numbers 0, 1, 2, ... into equal intervals above 0, as [lowest, highest, count]."""
    highest = len(counts) - 1
    width = max(1, -(-highest // bars))
    starts = range(1, highest + 1, width)
    return [
        [low, min(low + width - 1, highest), int(counts[low : min(low + width, highest + 1)].sum())] for low in starts
    ]


def _borders(bucket: int) -> tuple[int, int]:
    return (0, 0) if bucket < 0 else (1, 1) if bucket == 0 else (2 ** (bucket - 1) + 1, 2**bucket)
