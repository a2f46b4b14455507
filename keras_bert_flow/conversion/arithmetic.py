"""Change the GELUs or the masked-LM epsilon of a trained model, keeping its weights, without Keras."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from keras_bert_flow.conversion.checkpoint import Checkpoint
from keras_bert_flow.conversion.hf_config import HF_ACTIVATIONS, MLM_ACTIVATION, MLM_EPSILON, read_shape
from keras_bert_flow.conversion.tables.registry import find_table_of
from keras_bert_flow.models.saved_as import MASKED_LM_HEAD

CONFIG = "config.json"
GELUS = {"erf": "gelu", "tanh": "gelu_tanh"}  # user-facing name → ours
GELU_NAMES = {ours: name for name, ours in GELUS.items()}


def set_gelu(checkpoint: Checkpoint, gelu: str) -> Checkpoint:
    """Return the model with another GELU in its encoder, and in its masked-LM head unless that has its own.

    Args:
        gelu: `erf`, or `tanh`, which differs from it by at most 5e-4.
    Raises:
        ValueError: `gelu` is neither.
    """
    _check_gelu(gelu, "gelu")
    shape, table = read_shape(dict(checkpoint.config), CONFIG), find_table_of(checkpoint.config, CONFIG)
    before = GELU_NAMES[shape.hidden_act]
    return _change(checkpoint, table.activation, HF_ACTIVATIONS[GELUS[gelu]], "GELU", gelu, before)


def set_mlm_gelu(checkpoint: Checkpoint, gelu: str) -> Checkpoint:
    """Return the model with another GELU in its masked-LM head.

    Raises:
        ValueError: `gelu` is neither `erf` nor `tanh`, or the model has no masked-LM head.
    """
    _check_gelu(gelu, "mlm_gelu")
    _require_head(checkpoint, "mlm_gelu")
    shape = read_shape(dict(checkpoint.config), CONFIG)
    before = GELU_NAMES[shape.mlm_hidden_act or shape.hidden_act]
    return _change(checkpoint, MLM_ACTIVATION, HF_ACTIVATIONS[GELUS[gelu]], "GELU of the masked LM", gelu, before)


def set_mlm_epsilon(checkpoint: Checkpoint, epsilon: float) -> Checkpoint:
    """Return the model with another layer-norm epsilon in its masked-LM head.

    Raises:
        ValueError: `epsilon` is not above 0 and below 1, or the model has no masked-LM head.
    """
    if not 0 < epsilon < 1:
        raise ValueError(f"`mlm_epsilon` must be above 0 and below 1. Received: {epsilon}. Try 1e-5.")
    _require_head(checkpoint, "mlm_epsilon")
    shape = read_shape(dict(checkpoint.config), CONFIG)
    stored = shape.mlm_layer_norm_epsilon
    before = shape.layer_norm_epsilon if stored is None else stored
    return _change(checkpoint, MLM_EPSILON, epsilon, "epsilon of the masked LM", epsilon, before)


def _change(checkpoint: Checkpoint, field: str, value: Any, title: str, after: Any, before: Any) -> Checkpoint:
    """Return the model with a field of `config.json` changed and a remark added; unchanged if the values are equal."""
    if after == before:
        return checkpoint
    config: Mapping[str, Any] = {**checkpoint.config, field: value}
    return replace(checkpoint, config=config, remarks=(*checkpoint.remarks, f"{title} {after}, of {before}"))


def _check_gelu(gelu: str, name: str) -> None:
    if gelu not in GELUS:
        raise ValueError(f"`{name}` must be one of {', '.join(GELUS)}. Received: {gelu!r}. Use one of these.")


def _require_head(checkpoint: Checkpoint, name: str) -> None:
    table = find_table_of(checkpoint.config, CONFIG)
    head = table.name_heads(MASKED_LM_HEAD, "ForMaskedLM")["mlm"]
    if f"{head}.bias" not in checkpoint.tensors:
        raise ValueError(f"A model must have a head for masked tokens to set `{name}`. Received: none. Leave it out.")
