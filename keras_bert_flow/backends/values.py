"""Types of tensors and shapes, and the values of variables, replicated ones included."""

from typing import Any

import keras
import numpy as np

# A tensor of the backend, a symbolic one of Keras, or what Keras converts to one. The three backends have no type in
# common, and a docstring or a comment gives the dtype and the shape, which no type would say.
Tensor = Any
Shape = tuple[int | None, ...]  # None: an axis of any size


def read_variable(variable: keras.Variable) -> np.ndarray:
    """Return the value of a variable as a NumPy array.

    Under a TensorFlow distribution strategy, where `.value` differs by replica, it is the value of the first replica,
    or for a metric the sum over replicas.
    """
    is_several = keras.backend.backend() == "tensorflow"
    return keras.ops.convert_to_numpy(variable if is_several else variable.value)


def as_tensor(variable: Any) -> Tensor:
    """Convert a TensorFlow variable to a tensor, as compiled functions need it."""
    import tensorflow

    return tensorflow.convert_to_tensor(variable)
