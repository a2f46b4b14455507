"""The shape of an encoder: its sizes and rates, passed to each of its layers; importable without Keras."""

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
    def position_offset(self) -> int:
        """Row of the first token in the position embeddings."""
        return 0

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

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """Parts of a block that all blocks share: `attention`, `intermediate`, `output`."""
        return ()

    def find_pattern(self, block: int) -> Full:
        """Return the attention pattern of a block, by its number."""
        return FULL

    def find_positions(self, block: int) -> Learned:
        """Return how the attention of a block depends on positions, by its number."""
        return LEARNED

    @property
    def head_dim(self) -> int:
        return self.hidden_dim // self.num_heads

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
