"""ModernBERT: norms before the sublayers, gated feed-forwards, rotary positions, and local attention in most layers.

Ettin and mmBERT are ModernBERTs of other sizes.

Source: Warner et al. 2024, section 2.1; arXiv:2412.13663.
"""

from dataclasses import dataclass
from typing import ClassVar

from keras_bert_flow.layers.patterns import FULL, Full, Rotary, Window
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import Family


@dataclass(frozen=True)
class ModernBertShape(EncoderShape):
    """Shape of ModernBERT; `dropout_rate` is after attention and inside the feed-forward.

    The feed-forward has two matrices of `intermediate_dim` columns, and a third one of as many rows.

    Attributes:
        max_positions: longest sequence; no weight depends on it.
        local_attention: width of the window of local layers: a token attends to half as many on each side.
        global_every: of every so many layers the first one is global, with attention to all tokens.
        global_theta, local_theta: bases of the wavelengths of rotary positions in global and local layers.
        attention_bias, feed_forward_bias, norm_bias: whether attention, feed-forward and norms have biases.
        head_bias: whether the dense layer of the heads has a bias.
        embedding_dropout_rate: after the embeddings. Default: `dropout_rate`.
        pad_token_id: 50283 in the released checkpoints of ModernBERT and Ettin, 0 in our vocabularies. No number
            depends on it; `transformers` wants one of the vocabulary.
    Raises:
        ValueError: `global_every` or `local_attention` is below 1, a theta is not above 0, or heads have an odd width.
    """

    max_positions: int = 8192
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    layer_norm_epsilon: float = 1e-5
    local_attention: int = 128
    global_every: int = 3
    global_theta: float = 160_000.0
    local_theta: float = 10_000.0
    attention_bias: bool = False
    feed_forward_bias: bool = False
    norm_bias: bool = False
    head_bias: bool = False
    embedding_dropout_rate: float = None  # type: ignore[assignment]  # a number once it is made
    pad_token_id: int = 0

    num_segments: ClassVar[int] = 0  # type: ignore[misc]  # no field, so no argument either
    is_gated = True
    has_final_norm = True
    has_prediction_head = True
    has_dense_pooler = False

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, usual in (("local_attention", 128), ("global_every", 3)):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {name}={getattr(self, name)}. Try {usual}.")
        if self.head_dim % 2:
            raise ValueError(
                "Rotated heads must have an even width. Received: "
                f"hidden_dim={self.hidden_dim}, num_heads={self.num_heads}. Try num_heads={self.hidden_dim // 2}."
            )
        for theta in (self.global_theta, self.local_theta):
            Rotary(theta)  # raises for one that is not above 0
        if self.embedding_dropout_rate is None:
            object.__setattr__(self, "embedding_dropout_rate", self.dropout_rate)  # frozen

    def is_global(self, block: int) -> bool:
        return block % self.global_every == 0

    def find_pattern(self, block: int) -> Full:
        return FULL if self.is_global(block) else Window(self.local_attention // 2)

    def find_positions(self, block: int) -> Rotary:
        return Rotary(self.global_theta if self.is_global(block) else self.local_theta)

    @property
    def is_uniform(self) -> bool:
        return False  # the first block has one norm less

    @property
    def output_initializer_range(self) -> float:
        return self.initializer_range / (2 * self.num_layers) ** 0.5


MODERNBERT = Family(
    "modernbert",
    "ModernBERT",
    ModernBertShape,
    blocks="keras_bert_flow.layers.prenorm:make_pre_norm_blocks",
    has_pooler=False,
    has_sentence_task=False,
)
