"""Query, key and value are the slices that the docstring says, and so are their gradients."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert_flow.backends.products import split_heads

BATCH, LENGTH, HEADS, HEAD_DIM = 2, 5, 3, 4
FUSED = np.random.default_rng(1).normal(size=(BATCH, LENGTH, 3 * HEADS * HEAD_DIM)).astype("float32")


def slice_heads(fused):
    """Slice with NumPy: (3, batch, heads, length, head_dim)."""
    parts = fused.reshape(BATCH, LENGTH, HEADS, 3, HEAD_DIM)
    return np.stack([parts[:, :, :, part].transpose(0, 2, 1, 3) for part in range(3)])


class WeighParts(keras.layers.Layer):
    """Sum the parts of a weight, times the inputs: the gradient is the inputs, put where the parts were."""

    def build(self, shape):
        self.fused = self.add_weight(shape=FUSED.shape, initializer="zeros", name="fused")

    def call(self, inputs):
        parts = split_heads(ops.convert_to_tensor(self.fused), LENGTH, HEADS, HEAD_DIM)
        return ops.sum(inputs[0] * ops.stack(parts)) + 0 * inputs[:, 0, 0, 0, 0, 0]


def test_parts_are_slices():
    parts = split_heads(ops.convert_to_tensor(FUSED), LENGTH, HEADS, HEAD_DIM)
    np.testing.assert_array_equal([ops.convert_to_numpy(part) for part in parts], slice_heads(FUSED))


def test_gradients_go_back_to_the_slices():
    expected = slice_heads(FUSED)
    model = keras.Sequential([keras.Input(expected.shape), WeighParts()])
    model.compile(optimizer=keras.optimizers.SGD(1.0), loss=lambda y, outputs: ops.sum(outputs))
    model.fit(expected[None], np.zeros(1), shuffle=False, verbose=0)
    np.testing.assert_allclose(-ops.convert_to_numpy(model.weights[0]), FUSED, rtol=1e-6)


def test_gradient_on_jax_fills_up_no_zeros():
    if keras.backend.backend() != "jax":
        pytest.skip("the gradient is its own on jax only")
    import jax

    def loss(fused):
        return sum((part**number).sum() for number, part in enumerate(split_heads(fused, LENGTH, HEADS, HEAD_DIM), 1))

    assert " pad" not in str(jax.make_jaxpr(jax.grad(loss))(FUSED))
