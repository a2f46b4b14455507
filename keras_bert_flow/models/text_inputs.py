"""Texts in place of model inputs, and names of classes in place of labels."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

PAIR = {"text", "text_pair"}


def list_texts(x: Any) -> list[Any] | None:
    """Return texts, or pairs of texts, as a list; None for anything else.

    Args:
        x: a text or an object with `text` and `text_pair`, which is one item; or a list, tuple, array or column of
            such items, or of lists or tuples of two texts.
    """
    if isinstance(x, str) or isinstance(x, Mapping) and set(x) == PAIR and _is_item(x):
        return [x]
    if not isinstance(x, list | tuple):
        if not _holds_objects(x):
            return None
        x = x.tolist()
    return list(x) if x and _is_item(x[0]) else None


def number_classes(y: Any, labels: Sequence[str] | None) -> Any:
    """Return the class ids of names, int32, (rows,); anything but a list, array or column of names unchanged.

    Raises:
        ValueError: a name is none of the labels.
    """
    names = y.tolist() if _holds_objects(y) else y
    if not isinstance(names, list | tuple) or not names or not isinstance(names[0], str):
        return y
    ids = {name: number for number, name in enumerate(labels or ())}
    unknown = next((row for row, name in enumerate(names) if name not in ids), None)
    if unknown is not None:
        known = f"Use one of {', '.join(ids)}" if ids else "Build the model with `labels`, or number the classes"
        raise ValueError(f"A label must be one of the model's. Received: {names[unknown]!r} in row {unknown}. {known}.")
    return np.array([ids[name] for name in names], np.int32)


def _holds_objects(x: Any) -> bool:
    """Return whether an array or a column of pandas may hold strings."""
    if not hasattr(x, "dtype") or not hasattr(x, "tolist"):
        return False
    return getattr(x.dtype, "kind", "") in ("U", "T", "O") or str(x.dtype).startswith("str")


def _is_item(item: Any) -> bool:
    if isinstance(item, Mapping):
        return set(item) == PAIR and all(isinstance(text, str) for text in item.values())
    if isinstance(item, list | tuple):
        return len(item) == 2 and all(isinstance(text, str) for text in item)
    return isinstance(item, str)
