"""The shape of an encoder, which each of its layers is given whole; known without Keras."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from keras_bert_flow.by_name import load_by_name

PACKAGE = "keras_bert_flow."


def check_heads(hidden_dim: int, num_heads: int) -> None:
    """Raise ValueError unless the width of a token divides into heads."""
    if hidden_dim % num_heads:
        raise ValueError(
            f"`hidden_dim` must be divisible by `num_heads`. Received: hidden_dim={hidden_dim}, "
            f"num_heads={num_heads}. Try hidden_dim={max(1, round(hidden_dim / num_heads)) * num_heads}."
        )


@dataclass(frozen=True)
class EncoderShape:
    """Sizes and rates of an encoder; a family that has more of them adds fields.

    Attributes:
        max_positions: longest sequence, tokens.
        num_segments: 2 as in the released checkpoints; google-research's code defaults to 16. 0: there are none.
        hidden_act: `gelu` (erf, the 2018 checkpoints) or `gelu_tanh` (google-research's later code).
        dropout_rate: after the embeddings and after each sublayer.
        attention_dropout_rate: on the attention probabilities.
        initializer_range: standard deviation of new weights, before they are cut at two deviations.
        mlm_hidden_act, mlm_layer_norm_epsilon: of the head for masked tokens; None: as in the encoder. KerasHub's head
            has others than its encoder.
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

    def __post_init__(self):
        check_heads(self.hidden_dim, self.num_heads)

    @property
    def embedding_dim(self) -> int:
        """Width of the embeddings; a family may have a field for it."""
        return self.hidden_dim

    @property
    def position_offset(self) -> int:
        """Row of the position embeddings that the first token has."""
        return 0

    @property
    def pooler_act(self) -> str:
        """Activation of the pooler, a name of Keras."""
        return "tanh"

    @property
    def num_position_rows(self) -> int:
        return self.max_positions + self.position_offset

    @property
    def widens_embeddings(self) -> bool:
        """Whether a dense layer takes the embeddings to the width of the blocks."""
        return self.embedding_dim != self.hidden_dim

    @property
    def num_blocks(self) -> int:
        """Blocks with weights of their own."""
        return self.num_layers

    @property
    def shared_parts(self) -> tuple[str, ...]:
        """Parts of a block that all blocks share: `attention`, `intermediate`, `output`."""
        return ()

    @property
    def head_dim(self) -> int:
        return self.hidden_dim // self.num_heads

    def narrow(self, share: float) -> "EncoderShape":
        """Return the shape of an encoder of a share of the width: heads, of the same size each, and what goes by them.

        Raises:
            ValueError: the share is not above 0 and at most 1.
        """
        if not 0 < share <= 1:
            raise ValueError(f"A share of the width must be above 0 and at most 1. Received: {share}. Try 0.25.")
        heads = max(1, round(self.num_heads * share))
        intermediate_dim = max(1, self.intermediate_dim * heads // self.num_heads)
        return replace(self, num_heads=heads, hidden_dim=heads * self.head_dim, intermediate_dim=intermediate_dim)

    def describe(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def describe_shape(shape: EncoderShape) -> dict[str, Any]:
    """Return plain values that `make_shape` makes the shape of, with its class as `kind`."""
    return {"kind": f"{type(shape).__module__}:{type(shape).__name__}"} | shape.describe()


def make_shape(values: Mapping[str, Any]) -> EncoderShape:
    """Return the shape that `describe_shape` has described.

    Raises:
        ValueError: `kind` is no class of shapes of this package.
    """
    sizes = dict(values)
    kind = sizes.pop("kind")
    made = load_by_name(kind)(**sizes) if kind.startswith(PACKAGE) else None
    if not isinstance(made, EncoderShape):
        raise ValueError(f"`kind` must be a class of shapes of this package. Received: {kind!r}.")
    return made
