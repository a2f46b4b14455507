"""Rotation of queries and keys by their positions; on PyTorch on a CPU a few rows at a time, which stay in its cache.

Source: Su et al. 2021, section 3.2.2; arXiv:2104.09864. Halves as in EleutherAI/gpt-neox, `rotate_half`.
"""

from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.values import Tensor, is_recording

CACHED = 1 << 17  # numbers of a few rows: half a megabyte, of three that are in use at a time


def rotate(fused: Tensor, cosines: Tensor, sines: Tensor, num_heads: int) -> Tensor:
    """Rotate the pairs (i, i + half) of each part of a fused projection.

    Args:
        fused: float, (batch, length, 3 hidden). The last axis is ordered (heads, 3, head_dim).
        cosines, sines: float32, (length, 1, 3 head_dim). Those of the first half of a part have the sine negated.
    Returns:
        The shape and dtype of `fused`.
    """
    if _ROTATION is not None and _is_at_hand(fused):
        return _ROTATION.apply(fused, cosines, sines, num_heads)
    length, width = ops.shape(fused)[1], fused.shape[2] // num_heads
    halves = (-1, length, num_heads, 3, 2, width // 6)
    heads = ops.reshape(ops.cast(fused, "float32"), (-1, length, num_heads, width))
    first, second = ops.unstack(ops.reshape(heads, halves), 2, axis=4)
    swapped = ops.reshape(ops.stack([second, first], axis=4), (-1, length, num_heads, width))
    return ops.cast(ops.reshape(heads * cosines + swapped * sines, (-1, length, fused.shape[2])), fused.dtype)


def _is_at_hand(fused: Tensor) -> bool:
    """Return whether a tensor of PyTorch has its values now, and on a CPU."""
    import torch

    return fused.device.type == "cpu" and not is_recording() and not torch.compiler.is_compiling()


def _make_rotation() -> Any:
    """Return `rotate` for PyTorch on a CPU, with its gradient; None on the other backends."""
    if keras.backend.backend() != "torch":
        return None
    import torch

    def rotate_rows(fused: Tensor, cosines: Tensor, sines: Tensor, num_heads: int) -> Tensor:
        batch, length, width = fused.shape
        rotated, number = torch.empty_like(fused), max(1, CACHED // (length * width))
        shape, halves = (
            (-1, length, num_heads, width // num_heads),
            (-1, length, 3 * num_heads, 2, width // num_heads // 6),
        )
        for start in range(0, batch, number):
            rows = fused[start : start + number].float()
            swapped = rows.view(halves).flip(3).view(shape)
            turned = torch.mul(rows.view(shape), cosines).addcmul_(swapped, sines)
            rotated[start : start + number] = turned.view(rows.shape)
        return rotated

    class Rotation(torch.autograd.Function):
        """The rotation, whose gradient is the rotation back: only the angles are kept for it."""

        @staticmethod
        def forward(ctx: Any, fused: Tensor, cosines: Tensor, sines: Tensor, num_heads: int) -> Tensor:
            ctx.save_for_backward(cosines, sines)
            ctx.num_heads = num_heads
            return rotate_rows(fused.contiguous(), cosines, sines, num_heads)

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
            cosines, sines = ctx.saved_tensors
            return rotate_rows(gradient.contiguous(), cosines, -sines, ctx.num_heads), None, None, None

    return Rotation


_ROTATION = _make_rotation()
