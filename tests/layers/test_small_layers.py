"""Activations, embeddings, gather: exact."""

import keras
import numpy as np
import pytest
from scipy.special import erf

from keras_bert_flow.layers.dense import Dropout, get_activation, normal, truncated_normal
from keras_bert_flow.layers.embeddings import BertEmbeddings
from keras_bert_flow.layers.encoder import EncoderBlock
from keras_bert_flow.layers.heads import gather_positions
from keras_bert_flow.layers.shape import EncoderShape


def test_gelus_are_the_two_of_bert():
    x = np.linspace(-4, 4, 81).astype("float32")
    exact = 0.5 * x * (1 + erf(x / np.sqrt(2)))
    # The two differ by up to 5e-4 here; each is met to a few float32 roundings of values up to 4.
    np.testing.assert_allclose(keras.ops.convert_to_numpy(get_activation("gelu")(x)), exact, atol=2e-6)
    tanh = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(get_activation("gelu_tanh")(x)), tanh, atol=2e-6)


def test_activation_refuses_other_names():
    with pytest.raises(ValueError, match="must be one of gelu, gelu_tanh, relu, silu. Received: hidden_act='tanh'"):
        EncoderBlock(
            EncoderShape(
                vocabulary_size=50, num_layers=2, num_heads=3, hidden_dim=12, intermediate_dim=20, hidden_act="tanh"
            )
        )


def test_gather_picks_exact_rows():
    sequence = np.random.default_rng(2).normal(size=(2, 6, 5)).astype("float32")
    positions = np.array([[5, 0, 5], [2, 3, 0]], "int32")
    picked = keras.ops.convert_to_numpy(gather_positions(sequence, positions))
    np.testing.assert_array_equal(picked, np.stack([row[p] for row, p in zip(sequence, positions, strict=True)]))


def test_embeddings_refuse_long_sequences():
    layer = BertEmbeddings(EncoderShape(50, 1, 2, 8, 16, max_positions=4), name="embeddings")
    with pytest.raises(ValueError, match="length=5, max_positions=4"):
        layer(np.zeros((1, 5, 8), "float32"), np.zeros((1, 5), "int32"))


def test_initializer_stays_within_two_deviations():
    draws = keras.ops.convert_to_numpy(truncated_normal(0.02)((200, 200)))
    # On torch Keras draws four times and then takes what it has: 4.5 %^4 = 4e-6 of the draws are beyond the cut.
    assert np.mean(np.abs(draws) > 0.04 + 1e-6) < 1e-4
    # Of 40,000 draws cut at 2 sigma the standard deviation is 0.88 sigma, known to 0.4 %.
    assert 0.0170 < draws.std() < 0.0182


def test_initializer_of_a_task_has_all_of_its_deviation():
    draws = keras.ops.convert_to_numpy(normal(0.02)((200, 200)))
    # The standard deviation of 40,000 draws is known to 0.35 %, the share beyond two of them, 4.55 %, to 0.1 %.
    assert 0.0196 < draws.std() < 0.0204
    assert 0.040 < np.mean(np.abs(draws) > 0.04) < 0.051


def test_dropout_drops_and_scales_in_training_only():
    layer = Dropout(0.25, name="dropout")
    ones = np.ones((200, 200), "float32")
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(layer(ones, training=False)), ones)
    first, second = (keras.ops.convert_to_numpy(layer(ones, training=True)) for _ in range(2))
    np.testing.assert_allclose(np.unique(first), [0, 4 / 3], rtol=1e-6)
    # The share of 40,000 coins has a standard deviation of 0.0022; five of them.
    assert abs((first == 0).mean() - 0.25) < 0.011
    assert (first != second).any()


@pytest.mark.parametrize("rate", [-0.1, 1.0])
def test_dropout_refuses_other_rates(rate):
    with pytest.raises(ValueError, match=f"Received: rate={rate}"):
        Dropout(rate)
