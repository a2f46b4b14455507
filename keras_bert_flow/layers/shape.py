"""The shape of an encoder: its sizes and rates, and the attention pattern and positions of its blocks.

A family gives them as data, which is passed to each layer. Importable without Keras.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from keras_bert_flow.by_name import load_by_name

PACKAGE = "keras_bert_flow."
PRIME = 46_337  # the largest one whose square is below 2^31

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


# The shape, whose `find_pattern` and `find_positions` give these for each block.


@dataclass(frozen=True)
class EncoderShape:
    """Sizes and rates of an encoder; families add fields in subclasses.

    Attributes:
        max_positions: longest sequence, in tokens.
        num_segments: 2 as in the released checkpoints; google-research's code defaults to 16. 0: no segments.
        hidden_act: `gelu` (erf, the 2018 checkpoints) or `gelu_tanh` (google-research's later code).
        dropout_rate: after the embeddings and after each sublayer.
        attention_dropout_rate: on the attention probabilities.
        initializer_range: standard deviation of new weights, before truncation at two standard deviations.
        num_pieces: pieces of the vocabulary, if there are fewer than rows of token embeddings: a masked-LM head never
            predicts the other rows.
        mlm_hidden_act, mlm_layer_norm_epsilon: of the masked-LM head. Default: those of the encoder. KerasHub's head
            differs from its encoder in these.
    Raises:
        ValueError: `hidden_dim` is not divisible by `num_heads`.
    """

    vocabulary_size: int
    num_layers: int
    num_heads: int
    hidden_dim: int
    intermediate_dim: int
    max_positions: int = 512
    num_segments: int = 2
    hidden_act: str = "gelu"
    dropout_rate: float = 0.1
    attention_dropout_rate: float = 0.1
    layer_norm_epsilon: float = 1e-12
    initializer_range: float = 0.02
    mlm_hidden_act: str | None = None
    mlm_layer_norm_epsilon: float | None = None
    num_pieces: int | None = None

    pooler_act: ClassVar[str] = "tanh"  # activation of the pooler, by its name in Keras
    position_offset: ClassVar[int] = 0  # row of the first token in the position embeddings
    shared_parts: ClassVar[tuple[str, ...]] = ()  # of a block, by all blocks: `attention`, `intermediate`, `output`
    has_own_values: ClassVar[bool] = False  # whether attention projects its values from other inputs than its queries
    # What a student must have in common with the teacher whose layers it starts from.
    widths: ClassVar[tuple[str, ...]] = ("hidden_dim", "num_heads", "intermediate_dim", "embedding_dim")

    def __post_init__(self) -> None:
        if self.hidden_dim % self.num_heads:
            nearest = max(1, round(self.hidden_dim / self.num_heads)) * self.num_heads
            raise ValueError(
                f"`hidden_dim` must be divisible by `num_heads`. Received: hidden_dim={self.hidden_dim}, "
                f"num_heads={self.num_heads}. Try hidden_dim={nearest}."
            )

    @property
    def embedding_dim(self) -> int:
        """Width of the embeddings; a family may override it with a field."""
        return self.hidden_dim

    @property
    def position_dim(self) -> int:
        """Width of the position and segment embeddings."""
        return self.embedding_dim

    @property
    def attention_dim(self) -> int:
        """Width of all attention heads together."""
        return self.hidden_dim

    @property
    def has_dense_pooler(self) -> bool:
        """Whether the pooler has a dense layer; else it returns the first token."""
        return True

    @property
    def fits_float16(self) -> bool:
        """Whether the hidden states of a trained model are numbers of float16."""
        return True

    @property
    def normalization(self) -> str:
        """Kind of the norms of embeddings and blocks."""
        return "layer_norm"

    @property
    def has_query_bottleneck(self) -> bool:
        """Whether queries and keys are projected from a bottleneck that they share."""
        return False

    @property
    def num_feed_forwards(self) -> int:
        """Number of feed-forwards per block, one after the other."""
        return 1

    @property
    def mlm_dim(self) -> int:
        """Width of what the masked-LM head projects to the vocabulary.

        The token embeddings project as many of its values as they are wide, and a matrix of the head the others.
        """
        return self.embedding_dim

    @property
    def mlm_extension_dim(self) -> int:
        """Number of these values that the token embeddings do not project."""
        return self.mlm_dim - self.embedding_dim

    @property
    def num_position_rows(self) -> int:
        return self.max_positions + self.position_offset

    @property
    def projects_embeddings(self) -> bool:
        """Whether a dense layer projects the embeddings to the width of the blocks."""
        return self.embedding_dim != self.hidden_dim

    @property
    def num_blocks(self) -> int:
        """Number of blocks with their own weights."""
        return self.num_layers

    def find_pattern(self, block: int) -> Full:
        """Return the attention pattern of a block, by its number."""
        return FULL

    def find_positions(self, block: int) -> Learned:
        """Return how the attention of a block depends on positions, by its number."""
        return LEARNED

    @property
    def is_uniform(self) -> bool:
        """Whether the blocks differ in nothing but their weights, of which they share none: they can be scanned."""
        kinds = {(self.find_pattern(number), self.find_positions(number)) for number in range(self.num_blocks)}
        return self.num_blocks == self.num_layers and not self.shared_parts and len(kinds) == 1

    @property
    def head_dim(self) -> int:
        return self.attention_dim // self.num_heads

    def count_layer_flops(self, sequence_length: int) -> int:
        """Count the FLOPs of the matrix products of a layer, forward, per token; see `models.sizes.count_flops`."""
        hidden = self.hidden_dim
        return 8 * hidden**2 + 4 * hidden * self.intermediate_dim + 4 * sequence_length * hidden

    def count_projection_flops(self) -> int:
        """Count the FLOPs of the layers between the token embeddings and the blocks, forward, per token."""
        return 2 * self.embedding_dim * self.hidden_dim if self.projects_embeddings else 0

    def narrow(self, share: float) -> "EncoderShape":
        """Return the shape of a narrower encoder: fewer heads of the same size, hidden and intermediate width to match.

        Args:
            share: of the heads.
        Raises:
            ValueError: the share is not above 0 and at most 1.
        """
        if not 0 < share <= 1:
            raise ValueError(f"A share of the width must be above 0 and at most 1. Received: {share}. Try 0.25.")
        heads = max(1, round(self.num_heads * share))
        intermediate_dim = max(1, self.intermediate_dim * heads // self.num_heads)
        return replace(self, num_heads=heads, hidden_dim=heads * self.head_dim, intermediate_dim=intermediate_dim)


def check_scan(shape: EncoderShape, backend: str) -> None:
    """Raise ValueError unless the blocks of an encoder can be scanned on a backend."""
    if backend != "jax":
        raise ValueError(f"`pretraining.scan_layers` needs jax. Received: backend={backend}. Set scan_layers to false.")
    if not shape.is_uniform:
        raise ValueError(
            "`pretraining.scan_layers` needs blocks that differ in nothing but their weights and share none. Received: "
            f"{type(shape).__name__}, {shape.num_layers} layers of {shape.num_blocks} blocks, sharing "
            f"{', '.join(shape.shared_parts) or 'no parts'}. Set scan_layers to false."
        )


def check_precision(shape: EncoderShape, precision: str) -> None:
    """Raise ValueError if the numbers of an encoder overflow in a precision, or dtype policy of Keras."""
    if precision.removeprefix("mixed_") == "float16" and not shape.fits_float16:
        raise ValueError(
            f"The precision of a {type(shape).__name__.removesuffix('Shape')} must not be float16, whose largest "
            f"number its hidden states pass. Received: {precision}. Use mixed_bfloat16 or float32."
        )


def describe_shape(shape: EncoderShape) -> dict[str, Any]:
    """Serialise a shape to plain values, with its class as `kind`; see `make_shape`."""
    return {"kind": f"{type(shape).__module__}:{type(shape).__name__}"} | asdict(shape)


def make_shape(values: Mapping[str, Any]) -> EncoderShape:
    """Deserialise a shape from the values of `describe_shape`.

    Raises:
        ValueError: `kind` is not a shape class of this package.
    """
    sizes = dict(values)
    kind = sizes.pop("kind")
    made = load_by_name(kind)(**sizes) if kind.startswith(PACKAGE) else None
    if not isinstance(made, EncoderShape):
        raise ValueError(f"`kind` must be a class of shapes of this package. Received: {kind!r}.")
    return made
