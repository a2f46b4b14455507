"""Attention patterns and kinds of positions, as data of a block: plain values that serialise, without Keras."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

PRIME = 46_337  # the largest one whose square is below 2^31
LEAST_BLOCK = 16  # tokens: the products of smaller blocks take no less time
FEWEST_BLOCKS = 6  # of a row: three of fewer take no less time than all, with what it takes to divide it

# Patterns: which keys a query may attend to, besides that both must belong to the same text.


@dataclass(frozen=True)
class Full:
    """Every query attends to every key of its text, as in BERT."""

    is_full: ClassVar[bool] = True
    counts_from_text: ClassVar[bool] = False  # whether the places below must be counted from the start of each text

    def allows(self, query: Any, key: Any) -> Any:
        """Return where a query may attend to a key.

        Only operators are used, so that it takes arrays and tensors of any library, and the integers that a kernel
        such as FlexAttention's `mask_mod` passes.

        Args:
            query, key: int, of shapes that broadcast. Places of tokens in a row, or in their text.
        Returns:
            bool, of the shape that they broadcast to.
        """
        return query == query

    def find_block(self, length: Any) -> int | None:
        """Return the size of the blocks that a row is divided into, of which a query attends to three at most.

        None: attention is not divided, as the pattern reaches farther, or the row is short.

        Args:
            length: of the row. What is not an integer is not known before the computation, and counts as short.
        """
        return None

    def count_keys(self, length: int) -> int:
        """Return the number of keys whose scores are computed for each query of a row."""
        return length if (block := self.find_block(length)) is None else 3 * block


@dataclass(frozen=True)
class Window(Full):
    """Attention to the neighbours, in both directions, and between every token and the first ones of its text.

    Args:
        radius: largest distance of a key, inclusive: ModernBERT's `local_attention` of 128 is a radius of 64.
        num_global: tokens at the start of each text that attend to all keys and that all queries attend to.
    Raises:
        ValueError: an argument is below 0.
    Source: Beltagy et al. 2020, section 3.1; arXiv:2004.05150.
    """

    radius: int
    num_global: int = 0

    is_full: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_at_least(0, radius=self.radius, num_global=self.num_global)

    @property
    def counts_from_text(self) -> bool:  # type: ignore[override]  # a constant of the other patterns
        return self.num_global > 0

    def find_block(self, length: Any) -> int | None:
        size = max(self.radius, LEAST_BLOCK)
        is_long = isinstance(length, int) and length >= FEWEST_BLOCKS * size
        return size if is_long and not self.num_global else None

    def allows(self, query: Any, key: Any) -> Any:
        is_near = abs(query - key) <= self.radius
        return is_near | (query < self.num_global) | (key < self.num_global) if self.num_global else is_near


@dataclass(frozen=True)
class Blocks(Full):
    """Attention between neighbouring blocks of tokens, with the first blocks of each text, and to random ones.

    Args:
        size: tokens per block.
        num_neighbours: blocks on each side that a block attends to.
        num_global: blocks at the start of each text that attend to all keys and that all queries attend to.
        num_random: blocks that a block attends to besides, one in each of as many equal parts of the other blocks of a
            text of `num_blocks`. The same in all heads, where BigBird has its own in each; a family may give each layer
            another seed.
        num_blocks: blocks of the longest text, among which the random ones are; a shorter text has fewer of them.
        seed: of the random blocks, at least 0.
    Raises:
        ValueError: `size` is below 1, or another argument below 0; or blocks are random and `num_blocks` is 0.
    Source: Zaheer et al. 2020 (BigBird), section 2; arXiv:2007.14062.
    """

    size: int
    num_neighbours: int = 1
    num_global: int = 0
    num_random: int = 0
    num_blocks: int = 0
    seed: int = 0

    is_full: ClassVar[bool] = False
    counts_from_text: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_at_least(1, size=self.size)
        _check_at_least(
            0,
            num_neighbours=self.num_neighbours,
            num_global=self.num_global,
            num_random=self.num_random,
            seed=self.seed,
        )
        _check_at_least(1 if self.num_random else 0, num_blocks=self.num_blocks)

    def allows(self, query: Any, key: Any) -> Any:
        query, key = query // self.size, key // self.size
        allowed = abs(query - key) <= self.num_neighbours
        if self.num_global:
            allowed = allowed | (query < self.num_global) | (key < self.num_global)
        return allowed | self._is_random(query, key) if self.num_random else allowed

    def _is_random(self, query: Any, key: Any) -> Any:
        """Return whether a block is a random one of another: of integers alone, below 2^31."""
        end = max(self.num_blocks, self.num_global)
        # The other blocks are those from the last global one to `first`, and from `last` to `end`.
        first, last = (
            -_larger(-_larger(query + place, self.num_global), -end)
            for place in (-self.num_neighbours, self.num_neighbours + 1)
        )
        others, found = end - self.num_global - (last - first), query < 0
        for part in range(self.num_random):
            start, stop = others * part // self.num_random, others * (part + 1) // self.num_random
            chosen = _hash(query, self.seed * self.num_random + part) % _larger(stop - start, 1)
            place = self.num_global + start + chosen
            is_there = ((key == place) & (key < first)) | ((key == place + last - first) & (key >= last))
            found = found | (is_there & (start < stop))
        return found


def _larger(first: Any, second: Any) -> Any:
    return (first + second + abs(first - second)) // 2


def _hash(number: Any, seed: int) -> Any:
    """Return an integer below `PRIME` for an integer from 0 to below it, with products below 2^31."""
    for multiplier in (17_389, 30_011, 44_497):
        seed = (seed * 48_271 + multiplier) % (2**31 - 1)
        number = (number % PRIME * multiplier + seed % PRIME) % PRIME
        number = number * number % PRIME
    return number


@dataclass(frozen=True)
class Causal(Full):
    """Attention to the token itself and to those before it."""

    is_full: ClassVar[bool] = False

    def allows(self, query: Any, key: Any) -> Any:
        return key <= query


@dataclass(frozen=True)
class Permutation(Full):
    """Attention to the tokens that come before in an order given with the batch, one per row.

    Args:
        sees_itself: whether a token attends to itself: true in the content stream of XLNet, false in its query stream.
    Source: Yang et al. 2019 (XLNet), sections 2.2 and 2.3; arXiv:1906.08237.
    """

    sees_itself: bool = True

    is_full: ClassVar[bool] = False

    def allows(self, query: Any, key: Any) -> Any:
        return key <= query if self.sees_itself else key < query


RELATIVE_TERMS = ("c2p|p2c", "c2p", "p2c")  # content to position and position to content, in this order

# Positions: how attention, or what it reads, depends on where a token is. They start again with each text of a row.


@dataclass(frozen=True)
class Learned:
    """A learned vector for each position, added to the embeddings; attention itself does not depend on positions."""


@dataclass(frozen=True)
class Rotary(Learned):
    """Queries and keys are rotated by an angle proportional to their position.

    Args:
        theta: base of the wavelengths; a layer may have its own.
    Raises:
        ValueError: `theta` is not above 0.
    Source: Su et al. 2021, section 3.2; arXiv:2104.09864. The two halves of a head are rotated, as in GPT-NeoX.
    """

    theta: float = 10000.0

    def __post_init__(self) -> None:
        if not self.theta > 0:
            raise ValueError(f"`theta` must be above 0. Received: theta={self.theta}. Try 10000.")


@dataclass(frozen=True)
class Alibi(Learned):
    """Scores are lowered by the distance of the key, with another slope for each head.

    Source: Press et al. 2022, section 3; arXiv:2108.12409; in both directions, as in MosaicBERT (arXiv:2312.17482).
    """


@dataclass(frozen=True)
class TransformerXL(Learned):
    """Scores get the product of each query with a projected sinusoid of its distance from the key.

    A learned vector per head stands for the query where the score is to depend on the key or the distance alone.

    Source: Dai et al. 2019, section 3.3; arXiv:1901.02860; as XLNet computes it, in both directions.
    """


@dataclass(frozen=True)
class Disentangled(Learned):
    """Scores get products of queries and keys with learned vectors of their distance, which the encoder's layers share.

    Near distances have a vector each; those from half the number of buckets on share vectors logarithmically.

    Args:
        num_buckets: half the number of vectors.
        max_distance: distance from which on all keys have the same vector.
        terms: which products: `c2p` of queries with the vectors as keys, `p2c` of keys with them as queries, or both.
        is_logarithmic: whether distances share vectors; otherwise each has its own, up to `num_buckets`.
    Raises:
        ValueError: a number is below 2, `max_distance` is not above half of `num_buckets`, or a term is unknown.
    Source: He et al. 2021, section 3.2; arXiv:2006.03654; buckets as in microsoft/DeBERTa, `make_log_bucket_dict`.
    """

    num_buckets: int = 256
    max_distance: int = 512
    terms: str = RELATIVE_TERMS[0]
    is_logarithmic: bool = True

    def __post_init__(self) -> None:
        _check_at_least(2, num_buckets=self.num_buckets, max_distance=self.max_distance)
        if self.terms not in RELATIVE_TERMS:
            raise ValueError(
                f"The terms of relative positions must be one of {', '.join(RELATIVE_TERMS)}. Received: {self.terms!r}."
            )
        if self.is_logarithmic and self.max_distance <= self.num_buckets // 2 + 1:
            raise ValueError(
                "`max_distance` must be above half of `num_buckets` and 1. Received: "
                f"max_distance={self.max_distance}, num_buckets={self.num_buckets}. "
                f"Try max_distance={2 * self.num_buckets}."
            )


PATTERNS = {kind.__name__: kind for kind in (Full, Window, Blocks, Causal, Permutation)}
POSITIONS = {kind.__name__: kind for kind in (Learned, Rotary, Alibi, TransformerXL, Disentangled)}
FULL, LEARNED = Full(), Learned()


def describe_kind(value: Full | Learned) -> dict[str, Any]:
    """Serialise a pattern or a kind of positions to plain values."""
    return {"kind": type(value).__name__} | asdict(value)


def make_kind(value: Any, kinds: Mapping[str, Any]) -> Any:
    """Return a pattern or a kind of positions, from itself or from the values of `describe_kind`.

    Args:
        kinds: `PATTERNS` or `POSITIONS`.
    Raises:
        ValueError: `kind` is none of these.
    """
    if isinstance(value, Full | Learned):
        return value
    options = dict(value)
    kind = options.pop("kind")
    if kind not in kinds:
        raise ValueError(f"`kind` must be one of {', '.join(kinds)}. Received: {kind!r}.")
    return kinds[kind](**options)


def _check_at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise ValueError(f"`{name}` must be at least {least}. Received: {name}={value}. Try {name}={least or 1}.")
