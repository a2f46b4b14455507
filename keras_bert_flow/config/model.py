"""Section `model`."""

from typing import Literal

from pydantic import Field

from keras_bert_flow.config.limits import MOST_HEADS, MOST_LAYERS, MOST_POSITIONS, MOST_UNITS
from keras_bert_flow.config.settings import Settings


class ModelConfig(Settings):
    """The shape of the network."""

    family: str = Field("bert", description="Encoder family; see docs/family.md.")
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = Field("base", description="A published size.")
    num_layers: int | None = Field(
        None, ge=1, le=MOST_LAYERS, description="Number of encoder blocks. Default: that of `size`."
    )
    hidden_dim: int | None = Field(
        None, ge=1, le=MOST_UNITS, description="Width of the hidden states. Default: that of `size`."
    )
    num_heads: int | None = Field(
        None, ge=1, le=MOST_HEADS, description="Number of attention heads. Default: that of `size`."
    )
    intermediate_dim: int | None = Field(
        None, ge=1, le=4 * MOST_UNITS, description="Width of the feed-forward layer. Default: that of `size`."
    )
    max_positions: int = Field(
        512, ge=8, le=MOST_POSITIONS, description="Maximum sequence length of the model, in tokens."
    )
    hidden_act: Literal["gelu", "gelu_tanh"] = Field("gelu", description="Exact GELU (erf), or its tanh approximation.")
    dropout_rate: float = Field(0.1, ge=0, lt=1, description="Dropout rate after embeddings and sublayers.")
    attention_dropout_rate: float = Field(0.1, ge=0, lt=1, description="Dropout rate of the attention probabilities.")
    options: dict[str, int | float | str | bool] = Field(
        default_factory=dict,
        description="Further fields of the family's shape, such as `embedding_dim` of ALBERT.",
    )
