"""Matrix products in a dtype for which the CPU is fast."""

import keras
from keras import ops


def _is_bfloat16_slow():
    """Return whether PyTorch on this CPU multiplies bfloat16 matrices element by element, far slower than float32.

    It uses oneDNN instead if the CPU has AVX-512, or the Arm equivalent.
    """
    if keras.backend.backend() != "torch":
        return False
    import torch

    return not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


IS_BFLOAT16_SLOW = _is_bfloat16_slow()


def product_dtype(dtype):
    """Return the dtype in which to multiply tensors of a dtype: float32 where bfloat16 is slow, else the same."""
    dtype = keras.backend.standardize_dtype(dtype)
    is_slow = IS_BFLOAT16_SLOW and dtype == "bfloat16" and ops.zeros(()).device.type == "cpu"
    return "float32" if is_slow else dtype


def matmul(left, right):
    """Return `ops.matmul` of two tensors of the same dtype; where bfloat16 is slow, the rounded float32 product.

    A CPU with bfloat16 products also accumulates in float32 and rounds. Keras itself does the same for float16.
    """
    is_slow = IS_BFLOAT16_SLOW and keras.backend.standardize_dtype(left.dtype) == "bfloat16"
    if not is_slow or left.device.type != "cpu":
        return ops.matmul(left, right)
    return ops.cast(ops.matmul(ops.cast(left, "float32"), ops.cast(right, "float32")), "bfloat16")
