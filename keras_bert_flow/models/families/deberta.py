"""DeBERTa-v2 and -v3: attention to content and to relative positions by separate products, in log buckets.

mDeBERTa is a DeBERTa-v3 of another vocabulary. DeBERTa of the first version has other names and tokens.

Source: He et al. 2021, arXiv:2006.03654; He et al. 2023 (DeBERTaV3), arXiv:2111.09543.
"""

from dataclasses import dataclass
from typing import ClassVar

from keras_bert_flow.layers.patterns import LEARNED, RELATIVE_TERMS, Disentangled, Learned
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import ENCODER_SHARDING, MODEL_AXIS, Family

CONVOLUTION_ACTS = ("gelu", "gelu_tanh", "relu", "silu", "tanh")


@dataclass(frozen=True)
class DebertaShape(EncoderShape):
    """Shape of DeBERTa-v2 and -v3, by default of v3; `dropout_rate` is on the table of relative positions as well.

    Attributes:
        num_segments: 0 in the released checkpoints: no segments.
        embedding_dim: width of the token embeddings. Default: `hidden_dim`.
        position_terms: products of attention with relative positions: `c2p|p2c`, `c2p` or `p2c`; empty: none.
        position_buckets: half the number of relative positions, of which distant ones are shared logarithmically; 0:
            each distance has its own.
        max_distance: distance from which on all tokens have the same relative position; 0: `max_positions`.
        shares_projections: whether content and relative positions share the projections of queries and keys.
        has_relative_norm: whether there is a layer norm on the table of relative positions.
        has_position_embeddings: whether absolute positions are added to the token embeddings.
        convolution_width: tokens that the convolution after the lowest block sees, an odd number; 0: none, as in v3.
        convolution_act: activation of the convolution: one of those of `hidden_act`, or `tanh`, the default of
            `transformers`.
    Raises:
        ValueError: a term or an activation is unknown, a width or number is out of range, or there are no positions
            whose table the shape describes.
    """

    num_segments: int = 0
    layer_norm_epsilon: float = 1e-7
    embedding_dim: int = 0
    position_terms: str = RELATIVE_TERMS[0]
    position_buckets: int = 256
    max_distance: int = 0
    shares_projections: bool = True
    has_relative_norm: bool = True
    has_position_embeddings: bool = False
    convolution_width: int = 0
    convolution_act: str = "tanh"

    projects_embeddings = False  # the embeddings have their own projection, before their norm
    pooler_act: ClassVar[str] = "gelu"
    widths: ClassVar[tuple[str, ...]] = (
        *EncoderShape.widths,
        *("position_terms", "position_buckets", "max_distance", "shares_projections", "has_relative_norm"),
        *("has_position_embeddings", "convolution_width"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.embedding_dim == 0:
            object.__setattr__(self, "embedding_dim", self.hidden_dim)  # frozen
        if self.position_terms not in ("", *RELATIVE_TERMS):
            raise ValueError(
                f"`position_terms` must be one of {', '.join(RELATIVE_TERMS)}, or empty. Received: "
                f"position_terms={self.position_terms!r}. Try {RELATIVE_TERMS[0]!r}."
            )
        for name in ("embedding_dim", "position_buckets", "max_distance", "convolution_width"):
            if getattr(self, name) < 0:
                raise ValueError(f"`{name}` must be at least 0. Received: {name}={getattr(self, name)}. Try 0.")
        if self.convolution_width and self.convolution_width % 2 == 0:
            raise ValueError(
                "`convolution_width` must be odd, as many tokens on each side. Received: "
                f"convolution_width={self.convolution_width}. Try 3."
            )
        if self.convolution_act not in CONVOLUTION_ACTS:
            raise ValueError(
                f"`convolution_act` must be one of {', '.join(CONVOLUTION_ACTS)}. Received: "
                f"convolution_act={self.convolution_act!r}. Try 'gelu'."
            )
        self.find_positions(0)  # raises for a table that is too small

    @property
    def has_narrow_embeddings(self) -> bool:
        """Whether the embeddings have a width of their own, which is projected to `hidden_dim`."""
        return self.embedding_dim != self.hidden_dim

    @property
    def num_position_rows(self) -> int:
        return self.max_positions if self.has_position_embeddings else 0

    @property
    def num_relative_rows(self) -> int:
        return 2 * (self.position_buckets or self.max_distance or self.max_positions) if self.position_terms else 0

    @property
    def normalizes_relative(self) -> bool:
        """Whether there is a table of relative positions, with a layer norm."""
        return self.has_relative_norm and self.position_terms != ""

    def find_positions(self, block: int) -> Learned:
        if not self.position_terms:
            return LEARNED
        most = self.max_distance or self.max_positions
        if not self.position_buckets:
            return Disentangled(most, most, self.position_terms, is_logarithmic=False)
        if not self.max_distance:  # no text is longer; where all distances have their own bucket, any limit will do
            most = max(most, self.position_buckets // 2 + 2)
        return Disentangled(self.position_buckets, most, self.position_terms)

    @property
    def is_uniform(self) -> bool:
        return False  # `scan_blocks` passes no relative positions

    def count_layer_flops(self, num_keys: int) -> int:
        # Two rows of the table for each key and term; without the projections of the table, once per batch.
        terms = len(self.position_terms.split("|")) if self.position_terms else 0
        return super().count_layer_flops(num_keys) + 4 * terms * num_keys * self.hidden_dim

    def count_projection_flops(self) -> int:
        projection = 2 * self.embedding_dim * self.hidden_dim if self.has_narrow_embeddings else 0
        return projection + 2 * self.convolution_width * self.hidden_dim**2


DEBERTA_V2 = Family(
    "deberta-v2",
    "DeBERTa-v2",
    DebertaShape,
    embeddings="keras_bert_flow.layers.disentangled:DisentangledEmbeddings",
    blocks="keras_bert_flow.layers.disentangled:make_disentangled_blocks",
    relative="keras_bert_flow.layers.disentangled:RelativePositions",
    has_pooler=False,
    has_sentence_task=False,
    sharding=ENCODER_SHARDING
    | {
        "attention/position_(query|key)/kernel": (None, MODEL_AXIS),
        "attention/position_(query|key)/bias": (MODEL_AXIS,),
    },
)
