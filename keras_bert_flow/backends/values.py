"""Tensors: their types, the values of variables, and what is known of values while operations are traced or recorded.

`padding_mask` is 0 for padding and otherwise the number of the text that a token belongs to, from 1 in each row.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import keras
import numpy as np

_recording = ContextVar("recording", default=False)
_packed_rows: ContextVar[bool | None] = ContextVar("packed_rows", default=None)
_outside_scopes = ContextVar("outside_scopes", default=False)

# A tensor of the backend, a symbolic one of Keras, or what Keras converts to one. The three backends have no type in
# common, and a docstring or a comment gives the dtype and the shape, which no type would say.
Tensor = Any
Shape = tuple[int | None, ...]  # None: an axis of any size


def read_variable(variable: keras.Variable) -> np.ndarray:
    """Return the value of a variable as a NumPy array.

    Under a TensorFlow distribution strategy, where `.value` differs by replica, it is the value of the first replica,
    or for a metric the sum over replicas.
    """
    is_several = keras.backend.backend() == "tensorflow"
    return keras.ops.convert_to_numpy(variable if is_several else variable.value)


def value_of(value: Any) -> Tensor:
    """Return the value of a variable, in the type that its scope computes in, or a tensor as it is."""
    if not isinstance(value, keras.Variable):
        return value
    return value._value if _outside_scopes.get() else value.value


def list_values(variables: Iterable[keras.Variable]) -> list[Tensor]:
    """Return the values of variables outside of any scope: `value` looks for one, which takes longer than a product."""
    return [variable._value for variable in variables]


@contextmanager
def outside_scopes(is_outside: bool = True) -> Iterator[None]:
    """Say of what is computed inside that no scope of Keras changes a variable's value or type: none is looked for."""
    token = _outside_scopes.set(is_outside)
    try:
        yield
    finally:
        _outside_scopes.reset(token)


def is_outside_scopes() -> bool:
    """Return whether variables are known to be outside of any scope of Keras."""
    return _outside_scopes.get()


def as_tensor(variable: Any) -> Tensor:
    """Convert a TensorFlow variable to a tensor, as compiled functions need it."""
    import tensorflow

    return tensorflow.convert_to_tensor(variable)


# What is known of tensors that have no values yet, because operations are traced, recorded or exported.


def is_recording() -> bool:
    """Return whether operations are being recorded, so that nothing may depend on the value of a tensor."""
    return _recording.get()


@contextmanager
def assume_packed_rows(value: bool | None, is_recorded: bool = False) -> Iterator[None]:
    """Make `has_packed_rows` return a value, whatever the mask is; None: look it up where that is possible.

    Args:
        is_recorded: make `is_recording` true as well.
    """
    tokens = _packed_rows.set(value), _recording.set(is_recorded or _recording.get())
    try:
        yield
    finally:
        _packed_rows.reset(tokens[0])
        _recording.reset(tokens[1])


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
