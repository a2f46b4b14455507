"""Compute a chain of element-wise operations in one pass over memory."""

import functools

import keras


def fuse(function):
    """Return a function of tensors that TensorFlow compiles with XLA; the other backends get it as it is.

    TensorFlow passes over memory once for each operation and keeps each result for the gradient. On jax the whole step
    is compiled anyway. Matrix products stay outside: XLA on a processor has no bfloat16 ones. Under a strategy of
    TensorFlow nothing is compiled, as Keras does it.
    """
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow

    compiled = tensorflow.function(function, jit_compile=True)

    @functools.wraps(function)
    def run(*arguments):
        return (function if tensorflow.distribute.has_strategy() else compiled)(*arguments)

    return run
