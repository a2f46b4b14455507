"""What tests of several families ask of an encoder: its steps, its products, and how its weights are sharded."""

import re

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.backends.runtime import seed_everything
from keras_bert_flow.distribution.jax_cluster import make_layout
from keras_bert_flow.layers import masks
from keras_bert_flow.models.families.family import find_family
from tests.oracles.small_bert import make_inputs


def train_twice(make_backbone, dropouts, part=False, is_scanned=False, is_unpadded=True):
    """Return all weights of a masked LM after two steps, in each of which every dropout layer has drawn a mask.

    Args:
        dropouts: number of layers with dropout.
        part, is_scanned, is_unpadded: how the steps are computed.
    """
    seed_everything(3)
    model = kbf.MaskedLM(make_backbone())
    model.backbone.set_rematerialised(part)
    model.backbone.set_scanned(is_scanned)
    model.compile(optimizer=keras.optimizers.SGD(0.1))
    inputs = make_inputs(masks_per_sequence=3)
    is_real = np.take_along_axis(inputs["padding_mask"], inputs["mask_positions"], axis=1).astype("float32")
    with pytest.MonkeyPatch.context() as patch:
        if not is_unpadded:
            patch.setattr(masks, "is_unpaddable", lambda mask: False)
        for _ in range(2):
            model.train_on_batch(inputs, {"mlm": inputs["mask_positions"]}, sample_weight={"mlm": is_real})
    known = {weight.path for weight in model.weights}
    seeds = [variable for variable in model.variables if variable.path not in known]
    draws = {variable.path: int(keras.ops.convert_to_numpy(variable.value)[1]) for variable in seeds}
    assert len(draws) == dropouts and min(draws.values(), default=2) >= 2  # attention may draw for each group of rows
    return {weight.path: keras.ops.convert_to_numpy(weight) for weight in model.weights}


def count_by_torch(model, length, masks_per_sequence):
    """Return the FLOPs of three sequences by PyTorch's counter: forward, and of a whole step."""
    from torch.utils.flop_counter import FlopCounterMode

    x = {name: np.ones((3, length), "int32") for name in ("token_ids", "segment_ids", "padding_mask")}
    x["mask_positions"] = np.ones((3, masks_per_sequence), "int32")
    with FlopCounterMode(display=False) as counter:
        outputs = model(x, training=True)
        forward = counter.get_total_flops()
        sum(output.sum() for output in outputs.values()).backward()
    return forward, counter.get_total_flops()


def find_cuts(model, family):
    """Return path → axes of the weights that are sharded over two devices of a copy."""
    layout, found = make_layout(model.backbone.shape, find_family(family).sharding, 2), {}
    for variable in model.trainable_variables:
        axes = [axes for pattern, axes in layout.items() if re.fullmatch(pattern, variable.path)]
        assert len(axes) <= 1 and all(len(cut) == len(variable.shape) for cut in axes), variable.path
        if axes:
            found[variable.path] = axes[0]
    return found
