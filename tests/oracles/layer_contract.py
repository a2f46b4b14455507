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
    outputs = keras.tree.flatten(layer(*inputs))
    assert [variable.path for variable in layer.variables] == built, "a variable was born in call"

    twin = type(layer).from_config(layer.get_config())
    twin.build(*shapes)
    twin.set_weights(layer.get_weights())  # before any call
    for theirs, ours in zip(keras.tree.flatten(twin(*inputs)), outputs, strict=True):
        np.testing.assert_array_equal(_numpy(theirs), _numpy(ours))
    assert twin.get_config() == layer.get_config()

    symbols = [keras.KerasTensor((None, *array.shape[1:]), dtype=str(array.dtype)) for array in inputs]
    shapes = [tuple(symbol.shape) for symbol in keras.tree.flatten(layer(*symbols))]
    assert shapes == [(None, *output.shape[1:]) for output in outputs]

    mixed = type(layer).from_config(layer.get_config() | {"dtype": "mixed_bfloat16"})
    dtypes = {keras.backend.standardize_dtype(output.dtype) for output in keras.tree.flatten(mixed(*inputs))}
    assert dtypes == {"bfloat16"}
    assert {variable.dtype for variable in mixed.trainable_variables} <= {"float32"}


def _numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)
