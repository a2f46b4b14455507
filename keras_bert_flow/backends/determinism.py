"""Have the same numbers come out of the same inputs."""

import keras


def add_in_one_order() -> None:
    """Have TensorFlow add in the same order each time; the other backends do so on a processor."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow

        tensorflow.config.experimental.enable_op_determinism()
