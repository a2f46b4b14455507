"""State of the process: memory, processors, precision (dtype policy), random seeds and determinism.

The precision and the seeds of a run are set here alone.
"""

import ctypes
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import keras
import numpy as np
from keras import ops

from keras_bert_flow.backends.values import is_recording
from keras_bert_flow.config.machine import read_peak_memory

# Options of glibc's malloc.h, with the values to set.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_OPTIONS = {_ARENA_MAX: 1, _MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 1 << 26}


def keep_freed_memory() -> bool:
    """Stop malloc from returning freed memory to the operating system; return whether that succeeded.

    A step allocates and frees arrays of many MB. By default each is new memory from the operating system, which zeroes
    it page by page: a tenth of the step time on a CPU, or more. Call this before the backend starts its threads. The
    process then holds its peak memory until it ends, and the peak may be slightly higher.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return False
    return all(mallopt(option, value) == 1 for option, value in _OPTIONS.items())


# Detect whether tensors are on a CPU, where other implementations are fast than on an accelerator.


def is_on_processor() -> bool:
    """Return whether the backend puts tensors on a CPU."""
    return "cpu" in str(ops.zeros(()).device).lower()  # `cpu`, `TFRT_CPU_0`, `...device:CPU:0`


def is_torch_on_processor() -> bool:
    """Return whether operations run at once, by PyTorch on a CPU.

    It is false while they are recorded, for a number of Python, such as that of steps, would be the same in each step.
    """
    return keras.backend.backend() == "torch" and not is_recording() and is_on_processor()


# Peak memory of the process.


def read_peak_bytes() -> int:
    """Return the peak memory of the process so far, in bytes: of the accelerator, or main memory without one."""
    if is_on_processor():
        return read_peak_memory()
    if keras.backend.backend() == "torch":
        import torch

        return torch.cuda.max_memory_allocated()
    if keras.backend.backend() == "jax":
        import jax

        return jax.local_devices()[0].memory_stats()["peak_bytes_in_use"]
    import tensorflow

    return tensorflow.config.experimental.get_memory_info("GPU:0")["peak"]


# Precision and random seeds of a run.


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
    if keras.backend.backend() == "tensorflow":  # the other backends are deterministic on a CPU
        import tensorflow

        tensorflow.config.experimental.enable_op_determinism()


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
