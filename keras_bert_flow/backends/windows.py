"""Attention within a window, block by block: time and memory are linear in the length of a row.

A row is divided into blocks at least as long as the radius of the window, so the keys that a query may attend to are in
its own block and in the two beside it. Source: Beltagy et al. 2020, section 3.1, arXiv:2004.05150, who call it sliding
chunks, with chunks that overlap by half.
"""

from typing import Any

from keras import ops

from keras_bert_flow.backends.values import Tensor


def divide_row(values: Tensor, size: int) -> Tensor:
    """Return (..., length, width) as (..., blocks, size, width), with zeros after the end of the row."""
    *leading, length, width = ops.shape(values)
    blocks = -(-length // size)
    return ops.reshape(_pad(values, 0, blocks * size - length), (*leading, blocks, size, width))


def divide_keys(values: Tensor, size: int) -> Tensor:
    """Return (..., length, width) as (..., blocks, 3 size, width): each block between the two beside it.

    Beyond the ends of the row are zeros.
    """
    *leading, length, width = ops.shape(values)
    blocks = -(-length // size)
    padded = _pad(values, size, (blocks + 1) * size - length)
    shape = (*leading, blocks, size, width)
    shifted = [ops.reshape(padded[..., place * size : (place + blocks) * size, :], shape) for place in range(3)]
    return ops.concatenate(shifted, axis=-2)


def join_row(blocks: Tensor, length: int) -> Tensor:
    """Undo `divide_row`: return (..., length, width) from (..., blocks, size, width)."""
    *leading, number, size, width = ops.shape(blocks)
    return ops.reshape(blocks, (*leading, number * size, width))[..., :length, :]


def is_windowed(bias: Any) -> bool:
    """Return whether a bias of attention is that of blocks, (batch, 1, blocks, size, 3 size)."""
    return len(bias.shape) == 5


def _pad(values: Tensor, before: int, after: int) -> Tensor:
    widths = [(0, 0)] * (len(values.shape) - 2)
    return ops.pad(values, [*widths, (before, after), (0, 0)]) if before or after else values
