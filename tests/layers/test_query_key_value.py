"""LoRA of the fused projection: matrices of their own for query, key and value, each in its own columns."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert_flow.layers.attention import PARTS, QueryKeyValue
from keras_bert_flow.layers.dense import Dense

HEADS, HEAD_DIM, INPUTS, RANK = 3, 4, 8, 2
HIDDEN = HEADS * HEAD_DIM
ROWS = np.random.default_rng(1).normal(size=(4, 6, INPUTS)).astype("float32")


def make_layer(parts, **options):
    layer = QueryKeyValue(3 * HIDDEN, HEADS, name="fused", **options)
    layer.build(ROWS.shape)
    layer.enable_lora(RANK, lora_alpha=6, b_initializer="glorot_uniform", parts=parts)
    return layer


def split(fused):
    """Return query, key and value, each (..., heads · head_dim), of outputs ordered (heads, 3, head_dim)."""
    parts = fused.reshape(*fused.shape[:-1], HEADS, 3, HEAD_DIM)
    return {part: parts[..., place, :].reshape(*fused.shape[:-1], HIDDEN) for place, part in enumerate(PARTS)}


@pytest.mark.parametrize("parts", [("query", "value"), ("value", "key"), ("query",)])
def test_each_part_has_matrices_of_its_own(parts):
    layer = make_layer(parts)
    plain = keras.layers.Dense(3 * HIDDEN)
    plain.build(ROWS.shape)
    plain.set_weights([ops.convert_to_numpy(layer._kernel), ops.convert_to_numpy(layer.bias)])
    adapted, frozen = (split(ops.convert_to_numpy(kind(ROWS))) for kind in (layer, plain))
    for part in PARTS:
        if part in parts:
            first, second = (ops.convert_to_numpy(matrix) for matrix in layer.lora_matrices[part])
            added = ROWS @ first @ second * (6 / RANK)
        else:
            added = 0.0
        np.testing.assert_allclose(adapted[part], frozen[part] + added, atol=1e-5)  # float32, sums of 8 terms up to 10
    assert [variable.shape for variable in layer.trainable_variables] == [
        (3 * HIDDEN,),
        *[(INPUTS, RANK), (RANK, HIDDEN)] * len(parts),
    ]


def test_kernel_has_what_lora_adds():
    """Keras saves, shows and quantises that kernel."""
    layer = make_layer(("query", "value"))
    outputs = ROWS @ ops.convert_to_numpy(layer.kernel) + ops.convert_to_numpy(layer.bias)
    np.testing.assert_allclose(ops.convert_to_numpy(layer(ROWS)), outputs, atol=1e-5)  # as above


@pytest.mark.parametrize("make", [lambda: make_layer(PARTS), lambda: QueryKeyValue(3 * HIDDEN, HEADS)])
def test_lora_is_enabled_once_on_a_built_layer(make):
    with pytest.raises(ValueError, match="LoRA must be enabled once, on a layer that is built. Received: "):
        make().enable_lora(RANK)


def test_weights_are_not_loaded_over_lora():
    layer = make_layer(PARTS)
    with pytest.raises(ValueError, match="must have the LoRA of the layer.*Received: none, or"):
        layer.load_own_variables({"0": ROWS, "1": ROWS})


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_dense_layer_with_lora_learns_as_that_of_keras(dtype):
    found = []
    for kind in (Dense, keras.layers.Dense):
        layer = kind(5, dtype=dtype, kernel_initializer=keras.initializers.GlorotUniform(seed=3))
        inputs = keras.Input(ROWS.shape[1:])
        model = keras.Model(inputs, ops.mean(layer(inputs), axis=(1, 2)))
        layer.enable_lora(2, 6, keras.initializers.HeUniform(seed=1), keras.initializers.HeUniform(seed=2))
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
        for _ in range(2):
            model.train_on_batch(ROWS, np.arange(4, dtype="float32"))
        found.append([ops.convert_to_numpy(weight) for weight in layer.weights])
    for weight, expected in zip(*found, strict=True):
        # bfloat16 has 8 bits, and Keras rounds the sum of kernel and matrices where here each product is rounded
        np.testing.assert_allclose(weight, expected, atol=1e-5 if dtype == "float32" else 2e-2)
