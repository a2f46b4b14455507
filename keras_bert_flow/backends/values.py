"""Read the values of variables, replicated ones included."""

import keras
import numpy as np


def read_variable(variable) -> np.ndarray:
    """Return the value of a variable as a NumPy array.

    Under a TensorFlow distribution strategy, where `.value` differs by replica, it is the value of the first replica,
    or for a metric the sum over replicas.
    """
    is_several = keras.backend.backend() == "tensorflow"
    return keras.ops.convert_to_numpy(variable if is_several else variable.value)


def as_tensor(variable):
    """Convert a TensorFlow variable to a tensor, as compiled functions need it."""
    import tensorflow

    return tensorflow.convert_to_tensor(variable)
