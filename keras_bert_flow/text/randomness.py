"""Make random choices depend on content alone: one counter-based generator for each named purpose.

A worker's number, the order of work, a retry or the clock can change nothing that is drawn here.
"""

import hashlib

import numpy as np


def keyed_generator(*key: str | int) -> np.random.Generator:
    """Return a Philox generator that is a pure function of the key, such as (seed, purpose, document id, copy)."""
    return np.random.Generator(np.random.Philox(key=keyed_number(*key, digest_bytes=16)))


def keyed_number(*key: str | int | bytes, digest_bytes: int = 8) -> int:
    """Map a key to a number below 256 ** digest_bytes, evenly."""
    digest = hashlib.blake2b(digest_size=digest_bytes)
    for part in key:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)  # the length keeps ("ab", "c") from being ("a", "bc")
    return int.from_bytes(digest.digest(), "little")


def keyed_fraction(*key: str | int) -> float:
    """Map a key to a number in [0, 1), evenly."""
    return (keyed_number(*key) >> 11) / 2**53  # a float holds 53 bits; more would round up to 1.0
