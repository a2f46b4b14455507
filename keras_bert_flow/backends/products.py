"""Multiply matrices in a type that the processor can multiply."""

import keras
from keras import ops


def _is_bfloat16_slow():
    """Say whether PyTorch multiplies bfloat16 number by number on this processor, far slower than float32.

    It has oneDNN do it where there is AVX-512, or what Arm has for it.
    """
    if keras.backend.backend() != "torch":
        return False
    import torch

    return not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


IS_BFLOAT16_SLOW = _is_bfloat16_slow()


def product_dtype(dtype):
    """Return the type in which to multiply what is of a type: float32 where bfloat16 is slow, else its own."""
    dtype = keras.backend.standardize_dtype(dtype)
    is_slow = IS_BFLOAT16_SLOW and dtype == "bfloat16" and ops.zeros(()).device.type == "cpu"
    return "float32" if is_slow else dtype


def matmul(left, right):
    """Return `ops.matmul` of two tensors of one type; where bfloat16 is slow, the float32 product rounded to it.

    A processor that multiplies bfloat16 adds up in float32 and rounds as well. float16 is left to Keras, which does so.
    """
    is_slow = IS_BFLOAT16_SLOW and keras.backend.standardize_dtype(left.dtype) == "bfloat16"
    if not is_slow or left.device.type != "cpu":
        return ops.matmul(left, right)
    return ops.cast(ops.matmul(ops.cast(left, "float32"), ops.cast(right, "float32")), "bfloat16")
