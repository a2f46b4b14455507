"""Load and save models as model directories (presets)."""

from pathlib import Path

from keras_bert_flow.by_name import load_by_name, load_public

# `conversion` imports `models`, so these are resolved by name to avoid an import cycle.
LOAD = "keras_bert_flow.conversion.model_directory:load_model"
SAVE = "keras_bert_flow.conversion.model_directory:save_model_directory"


def load_preset(kind: type, path, **overrides):
    """Load a model of class `kind` from a model directory, and note the directory for its preprocessor."""
    model = load_by_name(LOAD)(kind, path, **overrides)
    getattr(model, "backbone", model).preset = str(path)
    return model


def load_preprocessor(path, max_positions):
    """Return the `TextPreprocessor` of a model directory, or None if it holds no tokenizer."""
    return load_public("TextPreprocessor").of_model(path, max_positions)


def save_preset(model, path, **details) -> None:
    """Write a model to a model directory, with the tokenizer of its preprocessor unless a vocabulary is given."""
    load_by_name(SAVE)(model, path, **details)
    preprocessor = getattr(model, "preprocessor", None)
    if preprocessor is not None and details.get("vocabulary_path") is None:
        preprocessor.tokenizer.write(Path(path))
