"""Check what every layer owes."""

import keras
import numpy as np


def layer_contract(layer, *inputs):
    """Round trip of the configuration, variables from shapes alone, one shape for symbols and arrays, bfloat16.

    Args:
        layer: not built yet.
        inputs: numpy arrays, the call arguments.
    """
    shapes = [array.shape for array in inputs]
    layer.build(*shapes)
    built = [variable.path for variable in layer.variables]
    outputs = layer(*inputs)
    assert [variable.path for variable in layer.variables] == built, "a variable was born in call"

    twin = type(layer).from_config(layer.get_config())
    twin.build(*shapes)
    twin.set_weights(layer.get_weights())  # before any call
    np.testing.assert_array_equal(_numpy(twin(*inputs)), _numpy(outputs))
    assert twin.get_config() == layer.get_config()

    symbols = [keras.KerasTensor((None, *array.shape[1:]), dtype=str(array.dtype)) for array in inputs]
    assert tuple(layer(*symbols).shape) == (None, *outputs.shape[1:])

    mixed = type(layer).from_config(layer.get_config() | {"dtype": "mixed_bfloat16"})
    assert keras.backend.standardize_dtype(mixed(*inputs).dtype) == "bfloat16"
    assert {variable.dtype for variable in mixed.trainable_variables} <= {"float32"}


def _numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)
