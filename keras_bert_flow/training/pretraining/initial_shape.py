"""Check the shape of the initial model of continued pre-training."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.config.model import ModelConfig
from keras_bert_flow.models.sizes import resolve_shape

# Fields that may differ: rates are those of the run, and a checkpoint may have more segments and rows of
# embeddings than are used.
FREE = {
    "num_segments",
    "dropout_rate",
    "attention_dropout_rate",
    "layer_norm_epsilon",
    "initializer_range",
    "mlm_hidden_act",
    "mlm_layer_norm_epsilon",
    "num_pieces",
}


def check_shape(found: Mapping[str, Any], shape: ModelConfig, folder: Path) -> None:
    """Raise ValueError unless a model has the configured shape.

    Args:
        found: constructor arguments of its encoder.
        shape: the configured shape.
        folder: the model directory, for the message.
    """
    wanted = {"family": shape.family} | resolve_shape(shape, found["vocabulary_size"]).describe()
    others = [
        f"{name}={found.get(name)}, not {value}"
        for name, value in wanted.items()
        if name not in FREE and found.get(name) != value
    ]
    if others:
        raise ValueError(
            f"The initial model must have the shape that the configuration says. Received: {folder}, with "
            f"{'; '.join(others)}. Set these in the section `model`."
        )
