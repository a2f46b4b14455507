"""Which weights are trained: frozen layers, LoRA and quantised layers, also after saving and loading."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bert_flow.backends.values import read_variable

FROZEN = "frozen"  # key in the config of a model


def describe_frozen(model: keras.Model, inner: Sequence[keras.Model] = ()) -> dict[str, Any]:
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


# LoRA: train low-rank matrices in addition to the projections of a frozen encoder.
#
# Source: Hu et al. 2021, section 4; arXiv:2106.09685.

QUERY, KEY, VALUE, ATTENTION_OUTPUT, FEED_FORWARD = TARGETS = (
    "query",
    "key",
    "value",
    "attention_output",
    "feed_forward",
)
LORA = "lora"  # key in the config of a model
ALPHA = 8.0  # as in peft; with it the learning rate need not change with the rank (section 4.1)
_VARIABLES = "lora_"  # prefix of the names of LoRA variables, also in Keras


def list_lora_layers(model: keras.Model) -> list[Any]:
    """Return the layers with LoRA, whether enabled here or by Keras."""
    # Keras has no public API to find nested layers.
    return [layer for layer in model._flatten_layers() if getattr(layer, "lora_enabled", False)]


def describe_lora(model: keras.Model, inner: Sequence[keras.Model] = ()) -> dict[str, Any]:
    """Return `{LORA: ...}` for the config of a model; empty if no layer has LoRA.

    Args:
        inner: nested models with their own config.
    """
    known = {id(layer) for other in inner for layer in list_lora_layers(other)}
    found = {layer.path: layer.describe_lora() for layer in list_lora_layers(model) if id(layer) not in known}
    return {LORA: found} if found else {}


def is_lora(variable: keras.Variable) -> bool:
    """Return whether a variable is a LoRA matrix."""
    return variable.name.startswith(_VARIABLES)


def read_merged(model: keras.Model) -> Iterator[tuple[keras.Variable, np.ndarray]]:
    """Yield each weight of a model except LoRA matrices, and its value with LoRA merged, as a NumPy array.

    Keras merges in the compute dtype, which in mixed precision also rounds the frozen weight.
    """
    adapted = {}
    for layer in list_lora_layers(model):
        name = "kernel" if hasattr(layer, "_kernel") else "embeddings"
        # Keras leaves the private `_kernel` and `_embeddings` to subclasses.
        adapted[id(getattr(layer, f"_{name}"))] = layer, (f"lora_{name}_a", f"lora_{name}_b")
    for variable in model.weights:
        if is_lora(variable):
            continue
        value = read_variable(variable)
        if id(variable) in adapted:
            layer, names = adapted[id(variable)]
            first, second = (ops.convert_to_numpy(getattr(layer, name)) for name in names)
            value = value + first @ second * (layer.lora_alpha / layer.lora_rank)
        yield variable, value


# Save which layers are quantised in the config of a model; Keras does so for top-level layers, not for nested ones.

QUANTIZED = "quantized"  # key in the config of a model


def list_quantized(model: keras.Model) -> list[keras.layers.Layer]:
    """Return the quantised layers of a model, nested ones included."""
    return [
        layer for layer in model._flatten_layers() if layer.quantization_mode is not None
    ]  # Keras has no public API for this


def describe_quantized(model: keras.Model, inner: Sequence[keras.Model] = ()) -> dict[str, Any]:
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


def restore_trained(make: Callable[..., keras.Model], config: Mapping[str, Any]) -> keras.Model:
    """Return the model that `make` builds of a config, with its LoRA, and quantised and frozen where the config says.

    Args:
        config: arguments of `make`, and what `describe_frozen`, `describe_lora` and `describe_quantized` returned. The
            weights are loaded next.
    """
    arguments = dict(config)
    frozen, adapted, quantized = (arguments.pop(key, None) for key in (FROZEN, LORA, QUANTIZED))
    model = make(**arguments)
    layers = {layer.path: layer for layer in model._flatten_layers()} if adapted or quantized else {}
    for path, options in (adapted or {}).items():
        layers[path].enable_lora(**options)
    for path, how in (quantized or {}).items():
        layers[path].quantize(how["mode"], config=keras.saving.deserialize_keras_object(how["config"]))
    if frozen:
        if frozen["model"]:
            model.trainable = False
        for name in frozen["layers"]:
            model.get_layer(name).trainable = False
        for weight in model.weights:
            if weight.path in frozen["weights"]:
                weight.trainable = False
    return model
