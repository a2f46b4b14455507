"""Memory and processors: keep freed memory, measure the peak, and ask for determinism."""

import ctypes
import sys

import keras
from keras import ops

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
    """Return whether the backend is PyTorch on a CPU."""
    return keras.backend.backend() == "torch" and is_on_processor()


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


# Deterministic results on every backend.


def add_in_one_order() -> None:
    """Enable deterministic operations in TensorFlow; the other backends are deterministic on a CPU."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow

        tensorflow.config.experimental.enable_op_determinism()
