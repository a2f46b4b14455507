"""Small adapters with random matrices, and the same asked of ours and of `transformers`."""

import json

import keras
import numpy as np

import keras_bert_flow as kbf
from keras_bert_flow.conversion.adapters import ADAPTER_CONFIG
from keras_bert_flow.conversion.model_directory import load_task_model
from keras_bert_flow.models.trained_weights import TARGETS
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL, make_inputs


def make_ids():
    """Return inputs of one segment in which 0 is the padding alone: `transformers` counts positions by it."""
    inputs = make_inputs()
    ids = np.where(inputs["padding_mask"] == 1, 1 + inputs["token_ids"] % 49, 0)
    return inputs | {"token_ids": ids.astype("int32"), "segment_ids": np.zeros_like(ids, "int32")}


def ask(model):
    """Return what our model answers to `make_ids`."""
    return keras.ops.convert_to_numpy(model(make_ids(), training=False))


def ask_reference(model):
    """Return the logits of a model of `transformers`, or of `peft` on one."""
    import torch

    inputs = make_ids()
    ids, mask = (torch.tensor(inputs[name]).long() for name in ("token_ids", "padding_mask"))
    with torch.no_grad():
        return model.eval()(input_ids=ids, attention_mask=mask).logits.numpy()


def save_base(folder, family="bert", **settings):
    """Write an encoder with weights that no default hides; return its folder."""
    backbone = kbf.Backbone(family, **SMALL | settings)
    numpy_bert.randomise_weights(backbone, seed=1)
    backbone.save_to_preset(folder)
    return folder


def save_adapter(base, folder, kind="classification", targets=TARGETS, **changes):
    """Write an adapter of a model, all whose matrices and head are random; return the model."""
    labels = {"labels": ["a", "b", "c"]} if kind in ("classification", "token_classification") else {}
    model = load_task_model(kind, base, **labels)
    model.backbone.enable_lora(2, 5.0, targets)
    rng = np.random.default_rng(3)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(0, 0.3, variable.shape).astype("float32"))
    model.save_to_preset(folder, adapter_of=base, **changes)
    return model


def edit_config(folder, **fields):
    """Change fields of `adapter_config.json`."""
    path = folder / ADAPTER_CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
