"""Move every weight of a model to Hugging Face's tensors and back."""

from collections.abc import Collection
from pathlib import Path

import numpy as np

from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.conversion import huggingface as hf
from keras_bert_flow.conversion.tensor_file import StoredTensors
from keras_bert_flow.models.backbone import BertBackbone


def export_tensors(model, backbone: BertBackbone, heads: dict[str, str]) -> dict[str, np.ndarray]:
    """Return the tensors of a model.

    Raises:
        ValueError: a weight is NaN or infinite.
    """
    table = hf.backbone_table(backbone.num_layers)
    # A bare encoder has bare names; beside heads its names start with `bert.`.
    table = {ours: f"bert.{theirs}" for ours, theirs in table.items()} | heads if heads else table
    tensors = {}
    for variable in model.weights:
        value = read_variable(variable).astype("float32")
        if not np.isfinite(value).all():
            raise ValueError(
                f"Weights must be numbers. Received: {variable.path} with NaN or infinity. Save none such."
            )
        names = hf.tensor_names(variable.path, table)
        tensors |= hf.export_variable(variable.path, value, names, backbone.num_heads)
    return tensors


def import_tensors(
    model,
    backbone: BertBackbone,
    heads: dict[str, str],
    tensors: StoredTensors,
    folder: Path,
    new_layers: Collection[str] = (),
) -> None:
    """Read every weight of a model, but for the layers that are new.

    Raises:
        ValueError: a tensor is missing or has another shape.
    """
    table = hf.backbone_table(backbone.num_layers) | heads
    source = folder / "model.safetensors"
    for variable in model.weights:
        if variable.path.rpartition("/")[0] in new_layers:
            continue
        names = hf.tensor_names(variable.path, table)
        expected = hf.tensor_shape(variable.path, tuple(variable.shape), names)
        for name in names:
            if name not in tensors:
                raise ValueError(f"{source}: there is no tensor `{name}`. Is it a {type(model).__name__}?")
            if tensors.shapes[name] != expected:
                raise ValueError(
                    f"{source}: `{name}` must have the shape {expected}, by config.json. "
                    f"Received: {tensors.shapes[name]}. Do the two files belong together?"
                )
        arrays = [tensors[name].astype(np.float32, copy=False) for name in names]
        variable.assign(hf.import_variable(variable.path, arrays, backbone.num_heads))


def has_pooler(tensors: StoredTensors) -> bool:
    """Say whether a directory holds a pooler, which a masked LM does not."""
    return any(name.startswith("pooler.") for name in tensors)


def list_missing(model, heads: dict[str, str], tensors: StoredTensors) -> tuple[str, ...]:
    """Return the layers of the pooler and of heads for which there is no tensor, in the order of the model."""
    tables = hf.POOLER | heads
    missing = {}  # an ordered set
    for variable in model.weights:
        layer = variable.path.rpartition("/")[0]
        if (layer in tables or variable.path in tables) and not tensors.keys() & hf.tensor_names(variable.path, tables):
            missing[layer] = None
    return tuple(missing)
