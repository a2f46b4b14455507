"""Peak memory of the process."""

import keras

from keras_bert_flow.backends.processor import is_on_processor
from keras_bert_flow.machine import read_peak_memory


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
