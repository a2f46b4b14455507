"""Attention reads real keys only, in float32, and refuses what it cannot split."""

import keras
import numpy as np
import pytest

from keras_bert_flow.layers import attention as attention_module
from keras_bert_flow.layers.attention import MultiHeadSelfAttention, attention_bias

RNG = np.random.default_rng(1)


def test_attention_bias_is_finite_and_on_keys():
    bias = keras.ops.convert_to_numpy(attention_bias(np.array([[1, 0], [0, 0]], "int32")))
    np.testing.assert_array_equal(bias, np.array([[0, -1e9], [-1e9, -1e9]], "float32").reshape(2, 1, 1, 2))


def test_attention_mask_may_be_bool_or_int():
    layer = MultiHeadSelfAttention(12, 3, name="attention")
    inputs = RNG.normal(size=(2, 4, 12)).astype("float32")
    mask = np.array([[1, 1, 1, 0], [1, 0, 0, 0]], "int32")
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(layer(inputs, m)) for m in (mask, mask.astype(bool))))


def test_attention_ignores_content_of_padding():
    layer = MultiHeadSelfAttention(12, 3, name="attention")
    inputs = RNG.normal(size=(1, 4, 12)).astype("float32")
    mask = np.array([[1, 1, 0, 0]], "int32")
    changed = inputs.copy()
    changed[:, 2:] = 1000.0
    before, after = (keras.ops.convert_to_numpy(layer(array, mask))[:, :2] for array in (inputs, changed))
    np.testing.assert_array_equal(before, after)


def test_attention_padded_queries_still_attend():
    # Masks are on keys only: a padding row gets the same mix as a real row with the same content.
    layer = MultiHeadSelfAttention(12, 3, name="attention")
    inputs = np.repeat(RNG.normal(size=(1, 1, 12)), 3, axis=1).astype("float32")
    outputs = keras.ops.convert_to_numpy(layer(inputs, np.array([[1, 1, 0]], "int32")))
    # Equal rows may be summed in another order by a vectorised product: a few float32 roundings of values below 1.
    np.testing.assert_allclose(outputs[:, 2], outputs[:, 0], atol=1e-6)


def test_attention_softmax_is_float32_under_bfloat16(monkeypatch):
    seen = []
    softmax = keras.ops.softmax
    monkeypatch.setattr(
        attention_module.ops,
        "softmax",
        lambda x, axis: seen.append(keras.backend.standardize_dtype(x.dtype)) or softmax(x, axis),
    )
    layer = MultiHeadSelfAttention(12, 3, dtype="mixed_bfloat16", name="attention")
    layer(RNG.normal(size=(1, 4, 12)).astype("float32"), np.ones((1, 4), "int32"))
    assert seen == ["float32"]


def test_attention_drops_probabilities_in_training_only():
    layer = MultiHeadSelfAttention(12, 3, attention_dropout_rate=0.5, name="attention")
    inputs, mask = RNG.normal(size=(1, 6, 12)).astype("float32"), np.ones((1, 6), "int32")
    first, second, still, again = (
        keras.ops.convert_to_numpy(layer(inputs, mask, training=flag)) for flag in (True, True, False, False)
    )
    assert np.abs(first - second).max() > 1e-3
    np.testing.assert_array_equal(still, again)


def test_attention_refuses_uneven_heads():
    with pytest.raises(ValueError, match="hidden_dim=770, num_heads=12. Try hidden_dim=768"):
        MultiHeadSelfAttention(770, 12)
