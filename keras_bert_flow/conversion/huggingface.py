"""Translate between our variables and Hugging Face's tensors: names, orientation, fused query-key-value.

A dense kernel is (inputs, outputs) here and (outputs, inputs) there. Query, key and value are three tensors there and
one here, with outputs ordered (heads, 3, head_dim).
"""

from collections.abc import Mapping

import numpy as np

from keras_bert_flow.conversion.tables.table import split_fused


def tensor_names(path: str, names: Mapping[str, str]) -> list[str]:
    """Return the names of the Hugging Face tensors for the variable at `path`: three for a fused one, else one.

    Args:
        names: our layers and variables → Hugging Face's, without `.weight` and `.bias`.
    """
    layer, _, variable = path.rpartition("/")
    suffix = "bias" if variable in ("bias", "beta") else "weight"
    return [f"{name}.{suffix}" for name in split_fused(names[path] if path in names else names[layer])]


def export_variable(path: str, value: np.ndarray, names: list[str], num_heads: int) -> dict[str, np.ndarray]:
    """Convert one of our variables to Hugging Face tensors."""
    if len(names) == 1:
        return {names[0]: _orient(path, value)}
    parts = value.reshape(*value.shape[:-1], num_heads, len(names), -1)  # (..., heads, 3, head_dim)
    return {
        name: _orient(path, parts[..., index, :].reshape(*value.shape[:-1], -1)) for index, name in enumerate(names)
    }


def import_variable(path: str, arrays: list[np.ndarray], num_heads: int) -> np.ndarray:
    """Convert Hugging Face tensors to the value of one of our variables."""
    values = [_orient(path, array) for array in arrays]
    if len(values) == 1:
        return values[0]
    split = [value.reshape(*value.shape[:-1], num_heads, -1) for value in values]  # (..., heads, head_dim)
    return np.stack(split, axis=-2).reshape(*values[0].shape[:-1], -1)


def tensor_shape(path: str, shape: tuple[int, ...], names: list[str]) -> tuple[int, ...]:
    """Return the shape of each Hugging Face tensor of a variable."""
    shape = (*shape[:-1], shape[-1] // len(names))
    return shape[::-1] if path.endswith("/kernel") else shape


def _orient(path: str, array: np.ndarray) -> np.ndarray:
    return array.T if path.endswith("/kernel") else array
