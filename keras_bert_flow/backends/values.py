"""Read the value of a variable, wherever it lies."""

import keras
import numpy as np


def read_variable(variable) -> np.ndarray:
    """Return the value of a variable.

    Under a strategy of TensorFlow, where `.value` is one for each replica: that of the first, of a metric their sum.
    """
    is_several = keras.backend.backend() == "tensorflow"
    return keras.ops.convert_to_numpy(variable if is_several else variable.value)


def as_tensor(variable):
    """Return a variable of TensorFlow as a tensor of it, which compiled functions take."""
    import tensorflow

    return tensorflow.convert_to_tensor(variable)
