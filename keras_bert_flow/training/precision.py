"""Precision (dtype policy) and random seeds of a run: the only place that changes global state of Keras."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import numpy as np

from keras_bert_flow.backends.memory import add_in_one_order


@contextmanager
def arithmetic(precision: str) -> Iterator[None]:
    """Set the dtype policy of models built in this context: `float32`, `mixed_bfloat16` or `mixed_float16`.

    Weights, softmax, layer norms and losses are float32 in each of them.

    Raises:
        ValueError: the backend cannot train in float16 on this device.
    """
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(precision)
    try:
        if precision == "mixed_float16":
            _check_float16()
        yield
    finally:
        keras.config.set_dtype_policy(before)


def seed_everything(seed: int) -> None:
    """Set the seeds of initial weights and dropout of models built next, and make TensorFlow deterministic.

    Keras draws the seed of each initializer and dropout layer from Python's generator. `keras.utils.set_random_seed`
    would do the same, but imports TensorFlow on every backend.
    """
    random.seed(seed)
    np.random.seed(seed)
    add_in_one_order()


def _check_float16() -> None:
    """Run one float16 training step of a small model, whose initial weights use no random numbers."""
    inputs = keras.Input((4,))
    hidden = keras.layers.LayerNormalization()(keras.layers.Dense(4, "gelu", kernel_initializer="ones")(inputs))
    model = keras.Model(inputs, keras.layers.Dense(1, kernel_initializer="ones", dtype="float32")(hidden))
    model.compile("sgd", "mse", jit_compile=keras.backend.backend() == "jax", auto_scale_loss=False)
    try:
        loss: float | str = float(model.train_on_batch(np.eye(4, dtype="float32"), np.ones((4, 1), "float32")))
    except Exception as error:
        loss = str(error).partition("\n")[0]
    if not (isinstance(loss, float) and np.isfinite(loss)):
        raise ValueError(
            f"Precision mixed_float16 needs a device that computes in float16. Received: {keras.backend.backend()} "
            f"here, where a step gives: {loss}. Try mixed_bfloat16 or float32."
        )
