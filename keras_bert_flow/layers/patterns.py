"""Attention patterns and kinds of positions, as data that a family gives; importable without Keras."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

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

    def allows(self, query: Any, key: Any) -> Any:
        is_near = abs(query - key) <= self.radius
        return is_near | (query < self.num_global) | (key < self.num_global) if self.num_global else is_near


@dataclass(frozen=True)
class Blocks(Full):
    """Attention between neighbouring blocks of tokens, and between every block and the first ones of its text.

    Args:
        size: tokens per block.
        num_neighbours: blocks on each side that a block attends to.
        num_global: blocks at the start of each text that attend to all keys and that all queries attend to.
    Raises:
        ValueError: `size` is below 1, or another argument below 0.
    Source: Zaheer et al. 2020 (BigBird), section 2; arXiv:2007.14062; without its random blocks.
    """

    size: int
    num_neighbours: int = 1
    num_global: int = 0

    is_full: ClassVar[bool] = False
    counts_from_text: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_at_least(1, size=self.size)
        _check_at_least(0, num_neighbours=self.num_neighbours, num_global=self.num_global)

    def allows(self, query: Any, key: Any) -> Any:
        query, key = query // self.size, key // self.size
        is_near = abs(query - key) <= self.num_neighbours
        return is_near | (query < self.num_global) | (key < self.num_global) if self.num_global else is_near


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
    Raises:
        ValueError: an argument is below 2, or `max_distance` is not above half of `num_buckets`.
    Source: He et al. 2021, section 3.2; arXiv:2006.03654; buckets as in microsoft/DeBERTa, `make_log_bucket_dict`.
    """

    num_buckets: int = 256
    max_distance: int = 512

    def __post_init__(self) -> None:
        _check_at_least(2, num_buckets=self.num_buckets, max_distance=self.max_distance)
        if self.max_distance <= self.num_buckets // 2 + 1:
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


def make_pattern(value: Any) -> Full:
    """Return a pattern, from itself or from the values of `describe_kind`."""
    return value if isinstance(value, Full) else _make(value, PATTERNS)


def make_positions(value: Any) -> Learned:
    """Return a kind of positions, from itself or from the values of `describe_kind`."""
    return value if isinstance(value, Learned) else _make(value, POSITIONS)


def _make(values: Any, kinds: dict[str, Any]) -> Any:
    options = dict(values)
    kind = options.pop("kind")
    if kind not in kinds:
        raise ValueError(f"`kind` must be one of {', '.join(kinds)}. Received: {kind!r}.")
    return kinds[kind](**options)


def _check_at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise ValueError(f"`{name}` must be at least {least}. Received: {name}={value}. Try {name}={least or 1}.")
