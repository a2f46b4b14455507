"""Ask each framework for the peak of its device's memory."""

import argparse
from collections.abc import Callable


def device_memory(shape: argparse.Namespace) -> Callable[[], int] | None:
    """Return what tells the peak in bytes, or None where the device is the processor."""
    if shape.device == "cpu":
        return None
    if shape.backend == "torch":
        import torch

        return torch.cuda.max_memory_allocated
    if shape.backend == "jax":
        import jax

        return lambda: jax.devices()[0].memory_stats()["peak_bytes_in_use"]
    import tensorflow

    return lambda: tensorflow.config.experimental.get_memory_info("GPU:0")["peak"]
