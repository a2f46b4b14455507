"""What is known of tensors while operations are traced, recorded or exported, and have no values yet.

`padding_mask` is 0 for padding and otherwise the number of the text that a token belongs to, from 1 in each row.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras

from keras_bert_flow.backends.values import Tensor

_recording = ContextVar("recording", default=False)
_packed_rows: ContextVar[bool | None] = ContextVar("packed_rows", default=None)


def is_recording() -> bool:
    """Return whether operations are being recorded, so that nothing may depend on the value of a tensor."""
    return _recording.get()


@contextmanager
def recorded() -> Iterator[None]:
    """Make `is_recording` true."""
    token = _recording.set(True)
    try:
        yield
    finally:
        _recording.reset(token)


@contextmanager
def assume_packed_rows(value: bool | None) -> Iterator[None]:
    """Make `has_packed_rows` return a value, whatever the mask is; None: look it up where that is possible."""
    token = _packed_rows.set(value)
    try:
        yield
    finally:
        _packed_rows.reset(token)


def has_packed_rows(padding_mask: Tensor) -> bool | None:
    """Return whether a row holds several texts; None if that is not known without a wait for a device.

    It is looked up on PyTorch on a CPU alone. What is compiled takes either kind of rows.

    Args:
        padding_mask: int, (batch, length).
    """
    if _packed_rows.get() is not None:
        return _packed_rows.get()
    if keras.backend.backend() != "torch" or padding_mask.device.type != "cpu" or is_recording():
        return None
    import torch

    return None if torch.compiler.is_compiling() else bool((padding_mask > 1).any())


def find_packed_rows(batch: Any) -> bool | None:
    """Return whether a row of a batch, (inputs, …), holds several texts; None if its inputs have no mask by name."""
    inputs = batch[0] if isinstance(batch, tuple | list) and batch else batch
    mask = inputs.get("padding_mask") if isinstance(inputs, Mapping) else None
    return None if mask is None else has_packed_rows(keras.ops.convert_to_tensor(mask))
