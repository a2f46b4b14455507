"""Deterministic results on every backend."""

import keras


def add_in_one_order() -> None:
    """Enable deterministic operations in TensorFlow; the other backends are deterministic on a CPU."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow

        tensorflow.config.experimental.enable_op_determinism()
