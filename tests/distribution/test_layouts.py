"""The layout cuts what is large, by whole heads, and its patterns meet the weights of the models that there are."""

import re

import numpy as np
import pytest
from keras import ops

from keras_bert_flow.backends.products import split_heads
from keras_bert_flow.distribution.jax_cluster import MODEL, make_layout
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import ENCODER_SHARDING
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.tiny_records import make_tiny_config

BLOCK = {
    "attention/query_key_value/kernel": (None, MODEL),
    "attention/query_key_value/bias": (MODEL,),
    "attention/output/kernel": (MODEL, None),
    "intermediate/kernel": (None, MODEL),
    "intermediate/bias": (MODEL,),
    "output/kernel": (MODEL, None),
}


def make_shape(num_heads, intermediate_dim):
    return EncoderShape(50, 1, num_heads, 12, intermediate_dim)


def layout_of(model, layout):
    """Return the axes of each weight that is cut, by its path, as Keras' `LayoutMap` finds them."""
    found = {}
    for variable in model.trainable_variables:
        axes = [axes for pattern, axes in layout.items() if re.fullmatch(pattern, variable.path)]
        assert len(axes) <= 1, variable.path
        if axes:
            assert len(axes[0]) == len(variable.shape)
            found[variable.path] = axes[0]
    return found


@pytest.mark.parametrize("objective", ["mlm_nsp", "mlm"])
def test_layout_names_what_is_cut(objective):
    model = make_pretrainer(make_tiny_config({"num_layers": 2}).model, 50, objective)
    expected = {f"encoder_block_{block}/{name}": axes for block in (0, 1) for name, axes in BLOCK.items()}
    expected |= {"token_embedding/embeddings": (MODEL, None), "mlm/bias": (MODEL,)}
    assert layout_of(model, make_layout(make_shape(2, 24), ENCODER_SHARDING, 2)) == expected


def test_vocabulary_that_does_not_divide_is_cut_the_other_way():
    model = make_pretrainer(make_tiny_config({"num_heads": 4}).model, 50)
    found = layout_of(model, make_layout(make_shape(4, 24), ENCODER_SHARDING, 4))
    assert found["token_embedding/embeddings"] == (None, MODEL)
    assert "mlm/bias" not in found


def test_each_device_gets_whole_heads():
    """Half of the columns of the product make the queries, keys and values of half of the heads."""
    fused = ops.reshape(ops.arange(3 * 16, dtype="float32"), (1, 1, -1))  # (batch, length, columns): columns as values
    query, key, value = map(ops.convert_to_numpy, split_heads(fused, 1, num_heads=2, head_dim=8))
    first = np.concatenate([part[0, 0].ravel() for part in (query, key, value)])
    assert sorted(first) == list(range(24))


@pytest.mark.parametrize(("heads", "wide", "name"), [(3, 24, "num_heads"), (4, 25, "intermediate_dim")])
def test_parts_that_do_not_divide_are_refused(heads, wide, name):
    with pytest.raises(ValueError, match=f"must divide the model's {name}. Received: model_parallel=2, {name}="):
        make_layout(make_shape(heads, wide), ENCODER_SHARDING, 2)
