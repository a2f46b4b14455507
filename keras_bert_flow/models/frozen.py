"""Save which layers and weights are frozen in the config of a model; Keras does not for custom constructors."""

import keras

FROZEN = "frozen"  # key in the config of a model


def describe_frozen(model, inner=()):
    """Return `{FROZEN: ...}` for the config of a model; empty if everything is trainable.

    Args:
        inner: nested models with their own config.
    """
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    frozen = [layer for layer in layers if not layer.trainable and layer.weights]
    known = {id(weight) for layer in (*frozen, *inner) for weight in layer.weights}
    weights = [weight.path for weight in model.weights if not weight.trainable and id(weight) not in known]
    if model.trainable and not frozen and not weights:
        return {}
    return {FROZEN: {"model": not model.trainable, "layers": [layer.name for layer in frozen], "weights": weights}}


def freeze(model, config):
    """Freeze the layers and weights that `describe_frozen` returned, if any, and return the model."""
    if config:
        if config["model"]:
            model.trainable = False
        for name in config["layers"]:
            model.get_layer(name).trainable = False
        for weight in model.weights:
            if weight.path in config["weights"]:
                weight.trainable = False
    return model


def freeze_lowest(backbone, num_blocks):
    """Freeze the embeddings of a backbone and its lowest blocks; a pooler stays trainable.

    Args:
        num_blocks: number of blocks; 0: only the embeddings.
    Raises:
        ValueError: the backbone has fewer blocks.
    """
    if not 0 <= num_blocks <= len(backbone.blocks):
        raise ValueError(
            f"The frozen blocks must be from 0 to {len(backbone.blocks)}, those of the model. Received: {num_blocks}."
        )
    depths = backbone.find_depths()
    for weight in backbone.weights:
        if depths.get(weight.path, num_blocks + 1) <= num_blocks:
            weight.trainable = False
