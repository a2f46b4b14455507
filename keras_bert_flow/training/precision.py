"""Set up arithmetic and randomness for a run: the one place where global state of Keras is touched."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import numpy as np


@contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Make models built inside compute in `float32` or `mixed_bfloat16`; softmax and losses stay float32."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)


def seed_everything(seed: int) -> None:
    """Fix initial weights and dropout of the models built next, and the order in which TensorFlow adds.

    Keras draws the seed of each initialiser and dropout layer from Python's generator. `keras.utils.set_random_seed`
    would do the same but imports TensorFlow on every backend.
    """
    random.seed(seed)
    np.random.seed(seed)
    if keras.backend.backend() == "tensorflow":
        import tensorflow

        tensorflow.config.experimental.enable_op_determinism()
