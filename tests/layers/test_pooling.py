"""Pooling: what numpy says, and nothing of padding."""

import keras
import numpy as np
import pytest

from keras_bert_flow.layers.heads import TokenPooling, unit_length

RNG = np.random.default_rng(0)
# Below 0, so that a maximum that counted padding as 0 would show.
SEQUENCE = (RNG.normal(size=(3, 5, 4)) - 5).astype("float32")
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], "int32")
LENGTHS = (5, 2)


def pool(pooling, sequence=SEQUENCE, **settings):
    return keras.ops.convert_to_numpy(TokenPooling(pooling, name="pooling", **settings)(sequence, MASK))


@pytest.mark.parametrize(
    ("pooling", "take"), [("mean", lambda x: x.mean(0)), ("max", lambda x: x.max(0)), ("cls", lambda x: x[0])]
)
def test_pooling_takes_real_tokens(pooling, take):
    expected = np.stack([take(row[:length]) for row, length in zip(SEQUENCE, LENGTHS, strict=False)])
    ours = pool(pooling)
    np.testing.assert_allclose(ours[:2], expected, atol=1e-5)  # float32 sums of five values near 5
    if pooling != "cls":
        np.testing.assert_array_equal(ours[2], 0)  # nothing to pool
    unit = pool(pooling, normalize=True)
    np.testing.assert_allclose(unit[:2], expected / np.linalg.norm(expected, axis=-1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_pooling_ignores_content_of_padding(pooling):
    changed = np.where(MASK[..., None], SEQUENCE, 100).astype("float32")
    np.testing.assert_array_equal(pool(pooling, changed), pool(pooling))


def test_pooling_refuses_another_name():
    with pytest.raises(ValueError, match="one of mean, cls, max. Received: pooling='last'"):
        TokenPooling("last")


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="gradients by hand are simplest in PyTorch")
def test_gradient_of_no_vector_is_a_number():
    import torch

    vectors = keras.ops.convert_to_tensor([[0.0, 0.0], [3.0, 4.0]]).requires_grad_()
    unit = unit_length(vectors)
    unit[:, 0].sum().backward()
    np.testing.assert_allclose(keras.ops.convert_to_numpy(unit), [[0, 0], [0.6, 0.8]], atol=1e-6)
    assert torch.isfinite(vectors.grad).all()
    # Of x / sqrt(x^2 + y^2) at (3, 4): y^2 / 125 and -x y / 125.
    np.testing.assert_allclose(keras.ops.convert_to_numpy(vectors.grad[1]), [0.128, -0.096], atol=1e-6)
