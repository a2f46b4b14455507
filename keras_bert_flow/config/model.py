"""Section `model`."""

from typing import Literal

from pydantic import Field

from keras_bert_flow.config.limits import MOST_HEADS, MOST_LAYERS, MOST_POSITIONS, MOST_UNITS
from keras_bert_flow.config.settings import Settings


class ModelConfig(Settings):
    """The shape of the network."""

    family: str = Field("bert", description="The kind of encoder: the name of a file of models/families.")
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = Field("base", description="A published size.")
    num_layers: int | None = Field(
        None, ge=1, le=MOST_LAYERS, description="Encoder blocks; by default those of `size`."
    )
    hidden_dim: int | None = Field(
        None, ge=1, le=MOST_UNITS, description="Width of a token; by default that of `size`."
    )
    num_heads: int | None = Field(None, ge=1, le=MOST_HEADS, description="Attention heads; by default those of `size`.")
    intermediate_dim: int | None = Field(
        None, ge=1, le=4 * MOST_UNITS, description="Width of the feed-forward; by default `size`'s."
    )
    max_positions: int = Field(512, ge=8, le=MOST_POSITIONS, description="Longest sequence the model can take, tokens.")
    hidden_act: Literal["gelu", "gelu_tanh"] = Field("gelu", description="The erf GELU of 2018, or the tanh one.")
    dropout_rate: float = Field(0.1, ge=0, lt=1, description="Dropout after embeddings and sublayers.")
    attention_dropout_rate: float = Field(0.1, ge=0, lt=1, description="Dropout on attention probabilities.")
    options: dict[str, int | float | str | bool] = Field(
        default_factory=dict,
        description="Further fields of the family's shape, such as `embedding_dim` of ALBERT.",
    )
