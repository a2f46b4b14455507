"""Unpadding: token-wise layers skip the padding of a batch, on backends that compile no shapes."""

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.values import Tensor, has_packed_rows, is_recording

GROUPS = 4  # groups of rows for attention


def is_unpaddable(padding_mask: Tensor) -> bool:
    """Return whether a batch has padding to skip: only PyTorch on a CPU, which compiles no shapes; not in packed rows.

    Packed rows have little padding, and attention would compute their bias once per block and group of rows.
    """
    if keras.backend.backend() != "torch" or padding_mask.device.type != "cpu" or is_recording():
        return False  # what is compiled or recorded has a shape, and an accelerator would wait to count the tokens
    return not bool(ops.all(ops.cast(padding_mask, "bool"))) and not has_packed_rows(ops.cast(padding_mask, "int32"))


def unpad_inputs(hidden: Tensor, padding_mask: Tensor) -> Tensor:
    """Return the real tokens of a batch, without padding.

    Args:
        hidden: PyTorch tensor, (batch, length, units).
        padding_mask: int or bool, (batch, length). Above 0 for a real token.
    Returns:
        (tokens, units), row by row.
    """
    return _row_functions()[0].apply(hidden.reshape(-1, hidden.shape[-1]), _find_places(padding_mask))


def pad_inputs(tokens: Tensor, padding_mask: Tensor) -> Tensor:
    """Invert `unpad_inputs`, with zeros for padding."""
    spread = _row_functions()[1].apply(tokens, _find_places(padding_mask), padding_mask.numel())
    return spread.reshape(*padding_mask.shape, tokens.shape[-1])


def map_rows(function: Callable, tokens: Tensor, padding_mask: Tensor) -> Tensor:
    """Apply a function of whole rows to tokens without padding, in groups of neighbouring rows.

    A group is as wide as its longest row, so there is little padding if rows are sorted by length.

    Args:
        function: maps a tensor, (rows, length, units), and its mask, (rows, length), to a tensor of the same rows.
        tokens: (tokens, units).
        padding_mask: of the whole batch.
    """
    groups = []
    for rows in padding_mask.tensor_split(GROUPS):
        columns = rows.any(dim=0).nonzero()  # those that are not padding in every row
        if len(columns):
            groups.append(rows[:, : int(columns.max()) + 1])
    parts = tokens.split([len(rows.nonzero()) for rows in groups])
    found = [function(pad_inputs(part, rows), rows) for part, rows in zip(parts, groups, strict=True)]
    return ops.concatenate([unpad_inputs(part, rows) for part, rows in zip(found, groups, strict=True)])


def _find_places(padding_mask: Tensor) -> Tensor:
    return padding_mask.reshape(-1).nonzero()[:, 0]


_functions: list[Any] = []


def _row_functions() -> list[Any]:
    """Return autograd functions of PyTorch that gather and scatter rows.

    No row occurs twice, so the gradient of each is the other. The gradient of `index_select` adds rows one by one.
    """
    if _functions:
        return _functions
    import torch

    def spread(rows: Tensor, places: Tensor, count: int) -> Tensor:
        return rows.new_zeros(count, rows.shape[1]).index_copy_(0, places, rows)

    class Take(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, rows: Tensor, places: Tensor) -> Tensor:
            context.save_for_backward(places)
            context.count = len(rows)
            return rows.index_select(0, places)

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
            (places,) = context.saved_tensors
            return spread(gradient.contiguous(), places, context.count), None

    class Put(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, rows: Tensor, places: Tensor, count: int) -> Tensor:
            context.save_for_backward(places)
            return spread(rows, places, count)

        @staticmethod
        def backward(context: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
            return gradient.index_select(0, *context.saved_tensors), None, None

    _functions.extend((Take, Put))
    return _functions
