"""Check the shape of a model whose weights a pre-training begins with."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.config.model import ModelConfig
from keras_bert_flow.models.sizes import resolve_size


def check_shape(found: Mapping[str, Any], shape: ModelConfig, folder: Path) -> None:
    """Raise ValueError unless a model has the shape that the configuration asks for.

    Args:
        found: arguments of its encoder.
        folder: its directory, for the message.
    """
    wanted = resolve_size(shape) | {"max_positions": shape.max_positions, "hidden_act": shape.hidden_act}
    others = [f"{name}={found[name]}, not {value}" for name, value in wanted.items() if found[name] != value]
    if others:
        raise ValueError(
            f"The initial model must have the shape that the configuration says. Received: {folder}, with "
            f"{'; '.join(others)}. Set these in the section `model`."
        )
