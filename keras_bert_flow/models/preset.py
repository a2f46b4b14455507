"""Send models to model directories and back."""

from importlib import import_module

# Conversion builds models, so models know it by name alone.
LOAD = "keras_bert_flow.conversion.model_directory:load_model"
SAVE = "keras_bert_flow.conversion.model_directory:save_model_directory"


def load_preset(kind: type, path, **overrides):
    """Load a model of a class from a model directory."""
    return _find(LOAD)(kind, path, **overrides)


def save_preset(model, path, **details) -> None:
    """Write a model to a model directory."""
    _find(SAVE)(model, path, **details)


def _find(codec: str):
    module, name = codec.split(":")
    return getattr(import_module(module), name)
