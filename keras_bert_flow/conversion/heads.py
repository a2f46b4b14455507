"""Determine which head a model directory holds."""

from typing import Any

from keras_bert_flow.conversion.codecs.tensors import TensorMapping
from keras_bert_flow.conversion.tables.table import FamilyTable
from keras_bert_flow.models.heads.registry import TASK_HEADS, find_task_head
from keras_bert_flow.models.saved_as import SavedAs


def find_saved_as(model) -> SavedAs:
    """Return the `SavedAs` of a model or model class, which says how it is saved.

    Raises:
        TypeError: a model directory cannot hold it.
    """
    saved = getattr(model, "saved_as", None)
    if not isinstance(saved, SavedAs):
        name = model.__name__ if isinstance(model, type) else type(model).__name__
        raise TypeError(f"A model directory holds a Backbone or a model with a head on it. Received: {name}.")
    return saved


def has_head(saved: SavedAs, config: dict[str, Any], tensors: TensorMapping, table: FamilyTable) -> bool:
    """Return whether a directory holds the head of a task, rather than another task's head of the same name."""
    if not saved.head:
        return True
    theirs = {name.removeprefix(table.class_prefix) for name in config.get("architectures") or ()}
    others = [find_task_head(kind).saved_as for kind in TASK_HEADS]
    namesakes = {other.architecture for other in others if other.head == saved.head}
    if saved.architecture not in theirs and namesakes & theirs:
        return False
    if saved.problem_type is not None and config.get("problem_type") not in (None, saved.problem_type):
        return False
    names = table.name_heads(saved.head, saved.architecture)
    kernels = [f"{names[layer]}.weight" for layer in saved.head]
    fewest, most = saved.outputs
    return all(fewest <= (*tensors.shapes.get(kernel, ()), 0)[0] <= most for kernel in kernels)
