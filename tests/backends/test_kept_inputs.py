"""Functions that keep only their inputs have the values and gradients of the plain ones."""

from functools import partial

import keras
import numpy as np
import pytest

from keras_bert_flow.backends import kernels as module
from keras_bert_flow.backends.fused import drop_values, dropped_steps
from keras_bert_flow.layers.dense import get_activation

pytestmark = pytest.mark.skipif(keras.backend.backend() != "jax", reason="their gradients are of JAX")

RNG = np.random.default_rng(5)
RESIDUAL, UPDATE, WEIGHTS = (RNG.normal(size=(3, 4, 16)).astype("float32") for _ in range(3))
SEED = np.array([7, 9], "uint32")


@pytest.mark.parametrize("rate", [0.0, 0.5])
def test_norm_is_that_of_keras_with_dropout_before_it(rate):
    import jax

    layer, dropped = keras.layers.LayerNormalization(epsilon=1e-12), dropped_steps(rate)
    layer.build((None, None, 16))
    gamma, beta = (RNG.normal(size=16).astype("float32") for _ in range(2))

    def plain(residual, update, gamma, beta):
        total = residual + (drop_values(update, SEED, dropped) if dropped else update)
        return layer.stateless_call([gamma, beta], [], total)[0]

    def fused(residual, update, gamma, beta):
        return module._make_norm()(residual, update, gamma, beta, jax.numpy.asarray(SEED), dropped, 1e-12)

    given = (RESIDUAL, UPDATE, gamma, beta)
    np.testing.assert_allclose(fused(*given), plain(*given), atol=1e-5)
    expected, found = (
        jax.grad(lambda *values: (function(*values) * WEIGHTS).sum(), (0, 1, 2, 3))(*given)  # noqa: B023
        for function in (plain, fused)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-5)
    assert (np.asarray(found[1]) == 0).mean() == pytest.approx(rate, abs=0.15)  # dropped where the update was


@pytest.mark.parametrize("name", ["gelu", "gelu_tanh"])
def test_activation_is_the_plain_one(monkeypatch, name):
    import jax

    plain = get_activation(name)
    kept = module.keep_inputs(plain)
    monkeypatch.setattr(module, "has_cudnn", lambda: True)
    given = UPDATE.astype("bfloat16")
    assert module.is_for_gpu(jax.numpy.asarray(given)) and not module.is_for_gpu(jax.numpy.asarray(UPDATE))
    np.testing.assert_array_equal(*(np.asarray(function(given), "float32") for function in (kept, plain)))
    gradients = (
        jax.grad(lambda x: (function(x).astype("float32") * WEIGHTS).sum())(jax.numpy.asarray(given))  # noqa: B023
        for function in (kept, plain)
    )
    np.testing.assert_allclose(*(np.asarray(value, "float32") for value in gradients), atol=1e-2)  # of bfloat16


def test_block_computes_the_same_where_there_is_cudnn(monkeypatch):
    """The block of a half-precision model on a CPU, whose dense attention is chosen when it is compiled."""
    import jax

    from keras_bert_flow.layers.encoder import EncoderBlock
    from keras_bert_flow.layers.shape import EncoderShape

    shape = EncoderShape(vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32)
    block = EncoderBlock(shape, dtype="mixed_bfloat16", name="block")
    block.build((None, 4, 16))
    trained = [variable.value for variable in block.trainable_variables]
    fixed = [variable.value for variable in block.non_trainable_variables]
    mask = np.ones((3, 4), "int32")

    def loss(trained):
        outputs, _ = block.stateless_call(trained, fixed, RESIDUAL.astype("bfloat16"), mask, training=True)
        return (outputs.astype("float32") * WEIGHTS).sum()

    expected = jax.jit(jax.value_and_grad(loss))(trained)
    monkeypatch.setattr(module, "has_cudnn", lambda: True)
    # Traced as the program for a GPU, where there is no cuDNN to ask.
    monkeypatch.setattr(module, "_attend_by_cudnn", partial(module._attend_by_cudnn, implementation="xla"))
    found = jax.jit(jax.value_and_grad(lambda values: loss(values)))(trained)
    np.testing.assert_allclose(found[0], expected[0], rtol=2e-2, atol=0.5)  # sums of 192 values in bfloat16
    for one, other in zip(found[1], expected[1], strict=True):
        scale = max(np.abs(np.asarray(other, "float32")).max(), 1e-3)
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), atol=5e-2 * scale)
