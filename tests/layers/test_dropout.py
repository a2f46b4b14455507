"""Dropout's own draws are as independent as coins: of each other, of other steps, other layers and other positions."""

import itertools

import keras
import numpy as np
import pytest
from scipy.stats import chi2

from keras_bert_flow.backends.fused import STEPS, dropped_steps, next_seed
from keras_bert_flow.layers.attention import MultiHeadSelfAttention
from keras_bert_flow.layers.dense import Dropout
from keras_bert_flow.layers.shape import EncoderShape

SHAPE = (16, 12, 64, 64)
COUNT = int(np.prod(SHAPE))


@pytest.fixture(autouse=True)
def same_draws_each_time():
    """One of some 2,000 runs would fall outside the bounds below by chance alone."""
    keras.utils.set_random_seed(1)


def to_numpy(tensor):
    return keras.ops.convert_to_numpy(keras.ops.cast(tensor, "float32"))


def make_layer(rate=0.1, seed=None):
    layer = Dropout(rate, name="dropout")
    layer.build(SHAPE)
    if seed is not None:
        layer.seed_generator.state.assign(np.array([seed, 0]))
    return layer


def draw_masks(layer, steps):
    """Return which of `SHAPE` values each step drops, (steps, values)."""
    return np.stack([to_numpy(layer(np.ones(SHAPE, "float32"), training=True)).ravel() == 0 for _ in range(steps)])


def assert_independent(first, second, name):
    """Two independent series of n coins correlate by at most 5/√n, but once in two million pairs."""
    correlation = np.corrcoef(first, second)[0, 1]
    assert abs(correlation) < 5 / np.sqrt(len(first)), name


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_dropout_drops_its_share_of_each_step(rate):
    masks = draw_masks(make_layer(rate), 4)
    exact = dropped_steps(rate) / STEPS
    assert abs(exact - rate) < 1e-5
    np.testing.assert_allclose(masks.mean(axis=1), exact, atol=5 * np.sqrt(rate / COUNT))


@pytest.mark.parametrize("axis", range(4))
def test_dropout_drops_the_same_share_everywhere(axis):
    mask = draw_masks(make_layer(), 1).reshape(SHAPE)
    others = tuple(other for other in range(4) if other != axis)
    share, size = mask.mean(axis=others), COUNT // SHAPE[axis]
    np.testing.assert_allclose(share, 0.1, atol=5 * np.sqrt(0.09 / size))
    # Were rows alike, their shares would vary too little or too much.
    spread = ((share - 0.1) ** 2).sum() / (0.09 / size)
    low, high = chi2.ppf([1e-6, 1 - 1e-6], len(share))
    assert low < spread < high


def test_dropout_is_independent_between_steps():
    masks = draw_masks(make_layer(), 6)
    for first, second in itertools.combinations(range(6), 2):
        assert_independent(masks[first], masks[second], f"steps {first} and {second}")


def test_dropout_is_independent_between_positions():
    mask = draw_masks(make_layer(), 1)[0]
    for distance in (1, 2, 3, 4, 5, 8, 16, 63, 64, 65, 128, 256, 1024, 4096, 65536):
        assert_independent(mask[:-distance], mask[distance:], f"distance {distance}")


@pytest.mark.slow_on_tensorflow
def test_dropout_is_independent_between_layers_of_near_seeds():
    """Seeds are close by in some models; counting on from each would give them the same draws, a few places on."""
    first = draw_masks(make_layer(seed=1000), 2)
    for other in (1001, 1002, 1008, 1064, 1000 + 65536):
        second = draw_masks(make_layer(seed=other), 2)
        for one, two in itertools.product(first, second):
            for shift in (0, other - 1000):
                assert_independent(one[: COUNT - shift], two[shift:], f"seeds 1000 and {other}, shifted by {shift}")
                assert_independent(one[shift:], two[: COUNT - shift], f"seeds 1000 and {other}, shifted by -{shift}")


def test_dropout_repeats_from_its_seed_state():
    layer = make_layer()
    draw_masks(layer, 3)
    state = keras.ops.convert_to_numpy(layer.seed_generator.state.value)
    expected = draw_masks(layer, 2)
    other = make_layer()
    other.seed_generator.state.assign(state)
    np.testing.assert_array_equal(draw_masks(other, 2), expected)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_dropout_keeps_the_expectation(policy):
    layer = Dropout(0.1, dtype=policy, name="dropout")
    values = np.random.default_rng(4).uniform(1, 2, SHAPE).astype("float32")
    # bfloat16 values are met on average, not one by one: a factor of 1.109 for 1.111 would be off by 0.0016.
    values = to_numpy(keras.ops.cast(values, layer.compute_dtype))
    kept = to_numpy(layer(values, training=True))
    is_kept = kept != 0
    ratio = kept[is_kept].astype("float64").sum() / values[is_kept].astype("float64").sum()
    np.testing.assert_allclose(ratio, STEPS / (STEPS - dropped_steps(0.1)), rtol=5e-5)


def test_attention_drops_the_share_of_its_rate():
    """With values of one, the context is the sum of the probabilities that are left."""
    layer = MultiHeadSelfAttention(EncoderShape(50, 2, 3, 12, 20, attention_dropout_rate=0.25), name="attention")
    inputs, mask = np.ones((64, 32, 12), "float32"), np.ones((64, 32), "int32")
    layer(inputs, mask)
    layer.query_key_value.kernel.assign(np.zeros((12, 36)))
    layer.query_key_value.bias.assign(np.ones(36))
    layer.output_dense.kernel.assign(np.eye(12))
    context = to_numpy(layer(inputs, mask, training=True))
    # The mean of 64 × 32 × 3 sums of 32 coins, each 0 or 1/32/0.75.
    np.testing.assert_allclose(context.mean(), 1, atol=5 * np.sqrt(0.25 / 0.75 / (64 * 32 * 3 * 32)))
    # Four in a row come of one head and one row of coins.
    heads = context.reshape(64, 32, 3, 4)
    np.testing.assert_allclose(heads - heads[..., :1], 0, atol=1e-6)
    # A sum of 32 independent coins has variance 0.25 / 0.75 / 32.
    np.testing.assert_allclose(heads[..., 0].var(), 0.25 / 0.75 / 32, rtol=0.15)


def test_seeds_are_those_of_keras():
    ours, theirs = (keras.random.SeedGenerator(7) for _ in range(2))
    for _ in range(3):
        found, expected = (keras.ops.convert_to_numpy(seed) for seed in (next_seed(ours), theirs.next()))
        np.testing.assert_array_equal(found, expected)
