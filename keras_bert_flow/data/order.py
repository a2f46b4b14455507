"""Shuffle records in each epoch by a pseudorandom permutation, with random access and no list of indices in memory.

Source of the permutation: Black and Rogaway 2002, Ciphers with arbitrary finite domains, section 3 and figure 2 (a
Feistel network on the next power of two, with cycle walking: an index beyond the records is permuted again).
"""

from functools import lru_cache
from typing import Any, Protocol

from keras_bert_flow.text.randomness import keyed_number

ROWS = 1 << 50  # practically infinite; Grain's own infinite length is too large for batches of one
_ROUNDS = 6  # with 4, some orders of four records are more frequent than others
_LEAST_BITS = 6  # with 3, some orders of five records are
_WORD = (1 << 64) - 1
# Odd constants that propagate a change of one bit to the upper half of a word: Steele et al. 2014, SplitMix64.
_FIRST_FACTOR, _SECOND_FACTOR = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9


class Permutation:
    """A pseudorandom permutation of range(length), determined by keys.

    Args:
        length: at least 1, at most 2 ** 62.
        keys: an even number of 64-bit integers.
    """

    def __init__(self, length: int, keys: list[int]):
        bits = max(_LEAST_BITS, (length - 1).bit_length())
        self._length = length
        self._right_bits = bits // 2
        self._left_mask, self._right_mask = (1 << bits - self._right_bits) - 1, (1 << self._right_bits) - 1
        self._rounds = list(zip(keys[::2], keys[1::2], strict=True))

    def __getitem__(self, place: int) -> int:
        number = self._encipher(place)
        while number >= self._length:
            number = self._encipher(number)
        return number

    def _encipher(self, number: int) -> int:
        left, right = number >> self._right_bits, number & self._right_mask
        for left_key, right_key in self._rounds:
            left ^= _mix(right ^ left_key) & self._left_mask
            right ^= _mix(left ^ right_key) & self._right_mask
        return left << self._right_bits | right


def _mix(word: int) -> int:
    word = word * _FIRST_FACTOR & _WORD
    return ((word ^ word >> 32) * _SECOND_FACTOR & _WORD) >> 32


class RandomAccess(Protocol):
    """Records with random access by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Shuffled:
    """Records repeated infinitely and reshuffled in each epoch, a function of (seed, position).

    Raises:
        ValueError: there are no records.
    """

    def __init__(self, records: RandomAccess, seed: int):
        if not len(records):
            raise ValueError("There must be something to train on. Received: none. Give more text.")
        self._records, self._seed, self._length = records, seed, len(records)
        self._permute = lru_cache(maxsize=2)(self._make_permutation)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, place: int) -> Any:
        epoch, index = divmod(place, self._length)
        return self._records[self._permute(epoch)[index]]

    def _make_permutation(self, epoch: int) -> Permutation:
        keys = [keyed_number("order", self._seed, epoch, number) for number in range(_ROUNDS)]
        return Permutation(self._length, keys)
