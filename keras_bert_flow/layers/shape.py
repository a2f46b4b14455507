"""The shape of an encoder: its sizes and rates, and what its blocks are made of.

A family gives them as data, which is passed to each layer. Importable without Keras.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

from keras_bert_flow.by_name import load_by_name
from keras_bert_flow.layers.patterns import FULL, LEARNED, Full, Learned

PACKAGE = "keras_bert_flow."


@dataclass(frozen=True)
class EncoderShape:
    """Sizes and rates of an encoder; families add fields in subclasses.

    Attributes:
        max_positions: longest sequence, in tokens.
        num_segments: 2 as in the released checkpoints; google-research's code defaults to 16. 0: no segments.
        hidden_act: `gelu` (erf, the 2018 checkpoints), `gelu_tanh` (google-research's later code), `relu` or `silu`.
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
    widths: ClassVar[tuple[str, ...]] = (
        *("hidden_dim", "num_heads", "intermediate_dim", "embedding_dim"),
        *("attention_bias", "feed_forward_bias", "norm_bias", "head_bias", "is_gated", "has_final_norm"),
    )

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
        """Kind of the norms of embeddings and blocks: `layer_norm`, `rms_norm`, or one of a family."""
        return "layer_norm"

    @property
    def norm_bias(self) -> bool:
        """Whether layer norms have a bias."""
        return True

    @property
    def attention_bias(self) -> bool:
        """Whether the projections of attention have biases."""
        return True

    @property
    def feed_forward_bias(self) -> bool:
        """Whether the products of the feed-forward have biases."""
        return True

    @property
    def head_bias(self) -> bool:
        """Whether the dense layer of the masked-LM head, or of `PredictionHead`, has a bias."""
        return True

    @property
    def is_gated(self) -> bool:
        """Whether the feed-forward multiplies its activation by a second product of its inputs (GeGLU, SwiGLU)."""
        return False

    @property
    def gate_groups(self) -> int:
        """Number of groups that the first product of a gated feed-forward is ordered in; see `dense.gate`."""
        return math.gcd(self.num_heads, self.intermediate_dim)

    @property
    def feed_forward_dim(self) -> int:
        """Width of the first product of the feed-forward."""
        return 2 * self.intermediate_dim if self.is_gated else self.intermediate_dim

    @property
    def query_key_value_dim(self) -> int:
        """Width of queries, keys and values together."""
        return 3 * self.attention_dim

    @property
    def has_embedding_norm(self) -> bool:
        """Whether the embeddings are normalised before the first block."""
        return True

    @property
    def has_final_norm(self) -> bool:
        """Whether a norm follows the last block, as where the blocks normalise their inputs."""
        return False

    @property
    def has_prediction_head(self) -> bool:
        """Whether the heads of tasks transform hidden states as the masked-LM head does; see `PredictionHead`."""
        return False

    @property
    def embedding_dropout_rate(self) -> float:
        """Dropout rate after the embeddings."""
        return self.dropout_rate

    @property
    def output_initializer_range(self) -> float:
        """Standard deviation of new weights whose products are added to the hidden states."""
        return self.initializer_range

    @property
    def has_query_bottleneck(self) -> bool:
        """Whether queries and keys are projected from a bottleneck that they share."""
        return False

    @property
    def num_relative_rows(self) -> int:
        """Number of vectors of relative positions, which all blocks take; 0: none."""
        return 0

    @property
    def shares_projections(self) -> bool:
        """Whether the projections of queries and keys are those of the vectors of distances as well."""
        return True

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
        """Number of position embeddings; 0 where attention itself depends on positions."""
        return self.max_positions + self.position_offset if type(self.find_positions(0)) is Learned else 0

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

    def count_layer_flops(self, num_keys: int) -> int:
        """Count the FLOPs of the matrix products of a layer, forward, per token; see `models.sizes.count_flops`.

        Args:
            num_keys: keys whose scores are computed for each query.
        """
        hidden = self.hidden_dim
        feed_forward = 2 * hidden * (self.feed_forward_dim + self.intermediate_dim)
        return 8 * hidden**2 + feed_forward + 4 * num_keys * hidden

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
