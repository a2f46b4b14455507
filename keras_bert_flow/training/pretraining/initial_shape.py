"""Check the shape of a model whose weights a pre-training begins with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.config.model import ModelConfig
from keras_bert_flow.models.sizes import resolve_shape

# The rates are the run's own, and a checkpoint may have more segments than are used.
SHAPE = ("num_layers", "hidden_dim", "num_heads", "intermediate_dim", "max_positions", "hidden_act")


def check_shape(found: Mapping[str, Any], shape: ModelConfig, folder: Path) -> None:
    """Raise ValueError unless a model has the shape that the configuration asks for.

    Args:
        found: arguments of its encoder.
        folder: its directory, for the message.
    """
    wanted = resolve_shape(shape, found["vocabulary_size"]).describe()
    others = [f"{name}={found[name]}, not {wanted[name]}" for name in SHAPE if found[name] != wanted[name]]
    if others:
        raise ValueError(
            f"The initial model must have the shape that the configuration says. Received: {folder}, with "
            f"{'; '.join(others)}. Set these in the section `model`."
        )
