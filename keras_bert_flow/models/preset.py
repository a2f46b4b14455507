"""Send models to model directories and back."""


def load_preset(kind: str, path, **overrides):
    """Load a model of `kind` (`backbone`, `pretrainer`, `masked_lm` or `classifier`) from a model directory."""
    # Conversion builds models, so models reach it only when asked.
    from keras_bert_flow.conversion import model_directory

    return getattr(model_directory, f"load_{kind}")(path, **overrides)


def save_preset(model, path, **details) -> None:
    """Write a model to a model directory."""
    from keras_bert_flow.conversion import model_directory

    model_directory.save_model_directory(model, path, **details)
