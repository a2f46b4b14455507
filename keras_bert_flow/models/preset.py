"""Load and save models as model directories (presets)."""

from keras_bert_flow.by_name import load_by_name

# `conversion` imports `models`, so these are resolved by name to avoid an import cycle.
LOAD = "keras_bert_flow.conversion.model_directory:load_model"
SAVE = "keras_bert_flow.conversion.model_directory:save_model_directory"


def load_preset(kind: type, path, **overrides):
    """Load a model of class `kind` from a model directory."""
    return load_by_name(LOAD)(kind, path, **overrides)


def save_preset(model, path, **details) -> None:
    """Write a model to a model directory."""
    load_by_name(SAVE)(model, path, **details)
