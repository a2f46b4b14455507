"""Keep which layers are quantised in the configuration of a model, which Keras keeps of layers in the list of a model
alone, not of those within a layer."""

import keras

QUANTIZED = "quantized"  # key in the configuration of a model


def list_quantized(model):
    """Return the quantised layers of a model, those within layers included."""
    return [
        layer for layer in model._flatten_layers() if layer.quantization_mode is not None
    ]  # Keras has no public form


def describe_quantized(model, inner=()):
    """Return `{QUANTIZED: ...}` for a configuration; empty where no layer is quantised.

    Args:
        inner: models within, which have a configuration of their own.
    """
    known = {id(layer) for other in inner for layer in list_quantized(other)}
    described = {
        layer.path: {
            "mode": layer.quantization_mode,
            "config": keras.saving.serialize_keras_object(layer.quantization_config),
        }
        for layer in list_quantized(model)
        if id(layer) not in known
    }
    return {QUANTIZED: described} if described else {}


def quantize(model, config):
    """Quantise the layers that `describe_quantized` found, if any, and return the model; their weights come next."""
    layers = {layer.path: layer for layer in model._flatten_layers()} if config else {}
    for path, how in (config or {}).items():
        options = keras.saving.deserialize_keras_object(how["config"])
        layers[path].quantize(how["mode"], config=options)
    return model
