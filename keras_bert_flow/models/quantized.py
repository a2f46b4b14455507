"""Save which layers are quantised in the config of a model; Keras does so for top-level layers, not for nested ones."""

import keras

QUANTIZED = "quantized"  # key in the config of a model


def list_quantized(model):
    """Return the quantised layers of a model, nested ones included."""
    return [
        layer for layer in model._flatten_layers() if layer.quantization_mode is not None
    ]  # Keras has no public API for this


def describe_quantized(model, inner=()):
    """Return `{QUANTIZED: ...}` for the config of a model; empty if no layer is quantised.

    Args:
        inner: nested models with their own config.
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
    """Quantise the layers that `describe_quantized` returned, if any, and return the model; weights are loaded next."""
    layers = {layer.path: layer for layer in model._flatten_layers()} if config else {}
    for path, how in (config or {}).items():
        options = keras.saving.deserialize_keras_object(how["config"])
        layers[path].quantize(how["mode"], config=options)
    return model
