"""The dense layer is Keras' own but for how jax computes the gradient of its kernel."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert_flow.layers.dense import Dense

ROWS = np.random.default_rng(1).normal(size=(4, 6, 8)).astype("float32")


def train(layer_class, rows, dtype):
    """Return the outputs of a layer, and its weights after two steps."""
    inputs = keras.Input(rows.shape[1:])
    layer = layer_class(5, activation="tanh", dtype=dtype, kernel_initializer=keras.initializers.GlorotUniform(seed=3))
    outputs = keras.layers.Dense(1, dtype="float32", kernel_initializer="ones")(layer(inputs))
    model = keras.Model(inputs, ops.sum(outputs, axis=tuple(range(1, rows.ndim))))
    first = ops.convert_to_numpy(ops.cast(layer(ops.convert_to_tensor(rows)), "float32"))
    model.compile(optimizer=keras.optimizers.SGD(0.003), loss="mse")
    model.fit(rows, np.arange(len(rows), dtype="float32"), epochs=2, batch_size=len(rows), verbose=0)
    return first, [ops.convert_to_numpy(weight) for weight in layer.weights]


@pytest.mark.first_form_compiled
@pytest.mark.parametrize("rows", [ROWS, ROWS[:, 0]], ids=["three axes", "two axes"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("mixed_bfloat16", 1e-2)])  # bfloat16 has 8 bits
def test_layer_learns_as_that_of_keras(rows, dtype, tolerance):
    (outputs, weights), (expected_outputs, expected_weights) = (
        train(layer_class, rows, dtype) for layer_class in (Dense, keras.layers.Dense)
    )
    np.testing.assert_array_equal(outputs, expected_outputs)
    for weight, expected in zip(weights, expected_weights, strict=True):
        np.testing.assert_allclose(weight, expected, atol=tolerance)


def test_gradient_of_the_kernel_is_not_transposed():
    if keras.backend.backend() != "jax":
        pytest.skip("jax transposes")
    import jax

    def count_transpositions(layer_class):
        layer = layer_class(5, use_bias=False)
        layer.build(ROWS.shape)

        def loss(kernel):
            outputs, _ = layer.stateless_call([kernel], [], ROWS)
            return (outputs**2).sum()

        return str(jax.make_jaxpr(jax.grad(loss))(layer.kernel.value)).count(" transpose")

    assert count_transpositions(Dense) == 0
    assert count_transpositions(keras.layers.Dense) > 0


def test_gradient_of_the_bias_is_a_product():
    if keras.backend.backend() != "jax":
        pytest.skip("the gradient is its own on jax only")
    import jax

    def count_sums(layer_class):
        layer = layer_class(5)
        layer.build(ROWS.shape)

        def loss(bias):
            outputs, _ = layer.stateless_call([layer.kernel.value, bias], [], ROWS)
            return (outputs * ROWS[..., :5]).sum()

        return str(jax.make_jaxpr(jax.grad(loss))(layer.bias.value)).count(" reduce_sum")

    assert count_sums(Dense) == 1  # of the loss
    assert count_sums(keras.layers.Dense) > 1
