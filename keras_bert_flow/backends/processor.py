"""Detect whether tensors are on a CPU, where other implementations are fast than on an accelerator."""

import keras
from keras import ops


def is_on_processor() -> bool:
    """Return whether the backend puts tensors on a CPU."""
    return "cpu" in str(ops.zeros(()).device).lower()  # `cpu`, `TFRT_CPU_0`, `...device:CPU:0`


def is_torch_on_processor() -> bool:
    """Return whether the backend is PyTorch on a CPU."""
    return keras.backend.backend() == "torch" and is_on_processor()
