"""Send models to model directories and back."""


def load_preset(kind: type, path, **overrides):
    """Load a model of a class from a model directory."""
    # Conversion builds models, so models reach it only when asked.
    from keras_bert_flow.conversion import model_directory

    return model_directory.load_model(kind, path, **overrides)


def save_preset(model, path, **details) -> None:
    """Write a model to a model directory."""
    from keras_bert_flow.conversion import model_directory

    model_directory.save_model_directory(model, path, **details)
