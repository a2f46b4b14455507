"""MobileBERT: thin and deep, with bottlenecks around narrow blocks, stacked feed-forwards and trigram embeddings.

With blocks wider than the hidden states between them, layer norms and one feed-forward, it is the inverted-bottleneck
BERT (IB-BERT) that MobileBERT learns from.

Source: Sun et al. 2020, section 3 and table 1; arXiv:2004.02984.
"""

from dataclasses import dataclass
from typing import ClassVar

from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import MODEL_AXIS, Family

# The published model: 24 layers of 4 heads, `hidden_dim` 512 and `intermediate_dim` 512.
BOTTLENECK = 4  # the hidden states are this many times as wide as the embeddings and the blocks
NORMALIZATIONS = ("no_norm", "layer_norm")


@dataclass(frozen=True)
class MobileBertShape(EncoderShape):
    """Shape of MobileBERT; `hidden_dim` is the width between blocks, which compute with fewer values.

    Attributes:
        embedding_dim: width of the token embeddings. Default: a quarter of `hidden_dim`.
        bottleneck_dim: width inside the blocks, of all heads together; above `hidden_dim` in an inverted bottleneck.
            Default: a quarter of `hidden_dim`.
        num_feed_forwards: feed-forwards per block, one after the other.
        has_dense_pooler: whether the pooler has a dense layer with tanh; else it returns the first token, as in
            google-research's checkpoints and `classifier_activation: false` of `transformers`.
        normalization: `no_norm`, a scale and a shift, or `layer_norm`, as in IB-BERT.
        has_query_bottleneck: whether queries and keys share a bottleneck of their own. Without it, as in IB-BERT, they
            are projected from the hidden states, like the values. `transformers` computes that only where
            `bottleneck_dim` equals `hidden_dim`.
    Raises:
        ValueError: a width is not a positive number, `hidden_dim` is less than `embedding_dim`, `bottleneck_dim` is not
            divisible by `num_heads`, there is no feed-forward, or `normalization` is unknown.
    """

    hidden_act: str = "relu"
    dropout_rate: float = 0.0
    embedding_dim: int = 0
    bottleneck_dim: int = 0
    num_feed_forwards: int = 4
    has_dense_pooler: bool = True
    normalization: str = NORMALIZATIONS[0]
    has_query_bottleneck: bool = True

    projects_embeddings = False  # the embeddings have their own projection, of three tokens
    has_own_values: ClassVar[bool] = True
    widths: ClassVar[tuple[str, ...]] = (
        *EncoderShape.widths,
        "bottleneck_dim",
        "num_feed_forwards",
        "normalization",
        "has_query_bottleneck",
    )

    def __post_init__(self) -> None:
        for name in ("embedding_dim", "bottleneck_dim"):
            if getattr(self, name) == 0:
                object.__setattr__(self, name, self.hidden_dim // BOTTLENECK)  # frozen
        if not 1 <= self.embedding_dim <= self.hidden_dim:
            raise ValueError(
                f"`embedding_dim` must be from 1 to `hidden_dim`. Received: embedding_dim={self.embedding_dim}, "
                f"hidden_dim={self.hidden_dim}. Try {max(1, self.hidden_dim // BOTTLENECK)}."
            )
        if self.bottleneck_dim < 1 or self.bottleneck_dim % self.num_heads:
            nearest = max(1, round(self.bottleneck_dim / self.num_heads)) * self.num_heads
            raise ValueError(
                f"`bottleneck_dim` must be divisible by `num_heads`. Received: bottleneck_dim={self.bottleneck_dim}, "
                f"num_heads={self.num_heads}. Try bottleneck_dim={nearest}."
            )
        if self.num_feed_forwards < 1:
            raise ValueError(
                f"`num_feed_forwards` must be at least 1. Received: num_feed_forwards={self.num_feed_forwards}. Try 4."
            )
        if self.normalization not in NORMALIZATIONS:
            raise ValueError(
                f"`normalization` must be one of {', '.join(NORMALIZATIONS)}. Received: "
                f"normalization={self.normalization!r}. Try {NORMALIZATIONS[0]!r}."
            )

    @property
    def fits_float16(self) -> bool:
        # Without layer norms they grow from block to block: in the published model to thousands.
        return self.normalization == "layer_norm"

    @property
    def position_dim(self) -> int:
        return self.hidden_dim

    @property
    def attention_dim(self) -> int:
        return self.bottleneck_dim

    @property
    def mlm_dim(self) -> int:
        return self.hidden_dim

    @property
    def trigram_dim(self) -> int:
        """Width of the embeddings of three tokens side by side."""
        return 3 * self.embedding_dim

    def count_layer_flops(self, num_keys: int) -> int:
        hidden, narrow = self.hidden_dim, self.bottleneck_dim
        bottlenecks = (6 if self.has_query_bottleneck else 4) * hidden * narrow  # in, of queries and keys, and out
        query_input = narrow if self.has_query_bottleneck else hidden
        attention = 4 * query_input * narrow + 2 * hidden * narrow + 2 * narrow**2 + 4 * num_keys * narrow
        return bottlenecks + attention + 4 * self.num_feed_forwards * narrow * self.intermediate_dim

    def count_projection_flops(self) -> int:
        return 2 * self.trigram_dim * self.hidden_dim


# Whole heads per device, and feed-forwards by columns, then rows, as in `family.ENCODER_SHARDING`.
SHARDING = {
    "attention/query_key_value/(query|key|value)/kernel": (None, MODEL_AXIS),
    "attention/query_key_value/(query|key|value)/bias": (MODEL_AXIS,),
    "attention/output/kernel": (MODEL_AXIS, None),
    r"feed_forward_\d+/intermediate/kernel": (None, MODEL_AXIS),
    r"feed_forward_\d+/intermediate/bias": (MODEL_AXIS,),
    r"feed_forward_\d+/output/kernel": (MODEL_AXIS, None),
}

MOBILEBERT = Family(
    "mobilebert",
    "MobileBERT",
    MobileBertShape,
    embeddings="keras_bert_flow.layers.mobilebert:TrigramEmbeddings",
    blocks="keras_bert_flow.layers.mobilebert:make_bottleneck_blocks",
    sharding=SHARDING,
)
