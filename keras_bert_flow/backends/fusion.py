"""Fuse a chain of element-wise operations into one pass over memory."""

import functools

import keras


def fuse(function):
    """Compile a function of tensors with XLA on TensorFlow; return it unchanged on the other backends.

    Without XLA, TensorFlow passes over memory once per operation and saves each result for the gradient. JAX compiles
    the whole training step anyway. Matrix products must stay outside: XLA has no bfloat16 ones on a CPU. Under a
    TensorFlow distribution strategy nothing is compiled, as in Keras.
    """
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow

    compiled = tensorflow.function(function, jit_compile=True)

    @functools.wraps(function)
    def run(*arguments):
        return (function if tensorflow.distribute.has_strategy() else compiled)(*arguments)

    return run
