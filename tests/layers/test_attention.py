"""Attention reads real keys only, in float32, and refuses what it cannot split."""

from dataclasses import replace

import keras
import numpy as np
import pytest
from scipy.special import softmax

from keras_bert_flow.layers.attention import MultiHeadSelfAttention, masked_softmax
from keras_bert_flow.layers.masks import attention_bias
from keras_bert_flow.layers.shape import EncoderShape

SHAPE = EncoderShape(vocabulary_size=50, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=20)
RNG = np.random.default_rng(1)


def test_attention_mask_may_be_bool_or_int():
    layer = MultiHeadSelfAttention(SHAPE, name="attention")
    inputs = RNG.normal(size=(2, 4, 12)).astype("float32")
    mask = np.array([[1, 1, 1, 0], [1, 0, 0, 0]], "int32")
    np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(layer(inputs, m)) for m in (mask, mask.astype(bool))))


def test_attention_ignores_content_of_padding():
    layer = MultiHeadSelfAttention(SHAPE, name="attention")
    inputs = RNG.normal(size=(1, 4, 12)).astype("float32")
    mask = np.array([[1, 1, 0, 0]], "int32")
    changed = inputs.copy()
    changed[:, 2:] = 1000.0
    before, after = (keras.ops.convert_to_numpy(layer(array, mask))[:, :2] for array in (inputs, changed))
    np.testing.assert_array_equal(before, after)


def test_attention_padded_queries_still_attend():
    # Masks are on keys only: a padding row gets the same mix as a real row with the same content.
    layer = MultiHeadSelfAttention(SHAPE, name="attention")
    inputs = np.repeat(RNG.normal(size=(1, 1, 12)), 3, axis=1).astype("float32")
    outputs = keras.ops.convert_to_numpy(layer(inputs, np.array([[1, 1, 0]], "int32")))
    # Equal rows may be summed in another order by a vectorised product: a few float32 roundings of values below 1.
    np.testing.assert_allclose(outputs[:, 2], outputs[:, 0], atol=1e-6)


def test_attention_softmax_computes_in_float32_under_bfloat16():
    scores = keras.ops.cast(RNG.normal(scale=3, size=(2, 3, 4, 128)).astype("float32"), "bfloat16")
    mask = (np.arange(128) < [[128], [100]]).astype("int32")
    got = masked_softmax(scores, attention_bias(mask)[:, :, :1])
    assert keras.backend.standardize_dtype(got.dtype) == "bfloat16"
    exact = keras.ops.convert_to_numpy(keras.ops.cast(scores, "float32")).astype("float64")
    exact = softmax(np.where(mask[:, None, None, :], exact, -np.inf), axis=-1)
    # The result is rounded once, by at most 2^-8 of it; exponentials or sums in bfloat16 would add as much or more.
    np.testing.assert_allclose(
        keras.ops.convert_to_numpy(keras.ops.cast(got, "float32")), exact, rtol=2.0**-8 * 1.01, atol=1e-30
    )


def test_attention_drops_probabilities_in_training_only():
    layer = MultiHeadSelfAttention(replace(SHAPE, attention_dropout_rate=0.5), name="attention")
    inputs, mask = RNG.normal(size=(1, 6, 12)).astype("float32"), np.ones((1, 6), "int32")
    first, second, still, again = (
        keras.ops.convert_to_numpy(layer(inputs, mask, training=flag)) for flag in (True, True, False, False)
    )
    assert np.abs(first - second).max() > 1e-3
    np.testing.assert_array_equal(still, again)


def test_attention_refuses_uneven_heads():
    with pytest.raises(ValueError, match="hidden_dim=770, num_heads=12. Try hidden_dim=768"):
        replace(SHAPE, hidden_dim=770, num_heads=12)
