"""Random numbers that depend on content alone: one counter-based generator for each named purpose.

The number of a worker, the order of work, retries and the clock have no effect on what is drawn.
"""

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def keyed_generator(*key: str | int) -> np.random.Generator:
    """Return a Philox generator that is a pure function of the key, such as (seed, purpose, document id, copy)."""
    # NumPy's stubs lack `ISeedSequence` as an argument.
    return np.random.Generator(np.random.Philox(_Key(_digest(key, 16).digest())))  # type: ignore[arg-type]


def keyed_number(*key: str | int | bytes, digest_bytes: int = 8) -> int:
    """Map a key to a uniformly distributed number below 256 ** digest_bytes."""
    return int.from_bytes(_digest(key, digest_bytes).digest(), "little")


def keyed_numbers(*beginning: str | int | bytes) -> Callable[[bytes], int]:
    """Return a function that maps the last part of a key to `keyed_number(*beginning, last)`, faster for many keys."""
    copy, from_bytes = _digest(beginning, 8).copy, int.from_bytes

    def find_number(last: bytes) -> int:
        digest = copy()
        digest.update(len(last).to_bytes(8, "little") + last)
        return from_bytes(digest.digest(), "little")

    return find_number


def as_fraction(number: int) -> float:
    """Map a number below 256 ** 8 to one in [0, 1)."""
    return (number >> 11) / 2**53  # a float holds 53 bits; more would round up to 1.0


class _Key(np.random.bit_generator.ISeedSequence):
    """Pass 16 bytes to Philox as its key; `Philox(key=...)` also draws system entropy, in twice the time."""

    def __init__(self, key: bytes):
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        return np.frombuffer(self._key, "<u8")  # (2,), what Philox asks for


def _digest(key: Iterable[str | int | bytes], digest_bytes: int) -> "hashlib.blake2b":
    parts = [part if isinstance(part, bytes) else str(part).encode() for part in key]
    # The length distinguishes ("ab", "c") from ("a", "bc").
    named = b"".join([len(part).to_bytes(8, "little") + part for part in parts])
    return hashlib.blake2b(named, digest_size=digest_bytes)
