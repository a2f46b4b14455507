"""Read how much memory a process has needed at most."""

import resource
import sys

import keras

from keras_bert_flow.backends.processor import is_on_processor

_BYTES_OF_UNIT = 1 if sys.platform == "darwin" else 1024  # getrusage(2)


def read_peak_bytes() -> int:
    """Return the most bytes that were in use since the process began: on the accelerator, or without one in memory."""
    if is_on_processor():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _BYTES_OF_UNIT
    if keras.backend.backend() == "torch":
        import torch

        return torch.cuda.max_memory_allocated()
    if keras.backend.backend() == "jax":
        import jax

        return jax.local_devices()[0].memory_stats()["peak_bytes_in_use"]
    import tensorflow

    return tensorflow.config.experimental.get_memory_info("GPU:0")["peak"]
