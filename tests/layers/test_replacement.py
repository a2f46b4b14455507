"""Tokens are drawn as NumPy draws them, put where the masks are, and judged as the loss needs it."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_bert_flow.layers.heads import DetectionLogits, ReplaceTokens, draw_classes

pytestmark = pytest.mark.any_backend


def as_numpy(value):
    return keras.ops.convert_to_numpy(value)


@pytest.mark.parametrize("classes", [2, 3, 50, 1000])
def test_classes_are_drawn_by_the_distribution_function(classes):
    rng = np.random.default_rng(classes)
    logits = rng.normal(0, 3, (400, classes)).astype("float32")
    draws = rng.random(400, np.float32)
    shares = np.exp(logits.astype("float64"))
    ends = np.cumsum(shares / shares.sum(-1, keepdims=True), axis=-1)
    expected = np.array([np.searchsorted(row, draw, side="right") for row, draw in zip(ends, draws, strict=True)])
    found = as_numpy(draw_classes(ops.convert_to_tensor(logits), ops.convert_to_tensor(draws)))
    is_near = np.abs(ends - draws[:, None]).min(axis=-1) < 1e-5  # float32 sums of a thousand terms
    assert is_near.sum() < 40
    np.testing.assert_array_equal(found[~is_near], expected[~is_near])


def test_the_ends_of_the_range_are_classes():
    logits = ops.convert_to_tensor(np.random.default_rng(0).normal(0, 9, (100, 30)).astype("float32"))
    for draw in (0.0, np.nextafter(np.float32(1), np.float32(0))):
        found = as_numpy(draw_classes(logits, ops.convert_to_tensor(np.full(100, draw, "float32"))))
        assert found.min() >= 0 and found.max() < 30


def test_tokens_are_put_where_the_masks_are():
    token_ids = np.array([[2, 4, 7, 4, 3], [2, 8, 9, 3, 0]])  # 2 [CLS], 3 [SEP], 4 [MASK]
    positions, mask_ids = np.array([[1, 3], [2, 0]]), np.array([[5, 6], [9, 0]])  # the last is filler
    logits = np.full((2, 2, 10), -100.0, "float32")
    for row, place, drawn in ((0, 0, 5), (0, 1, 8), (1, 0, 7), (1, 1, 6)):
        logits[row, place, drawn] = 0.0
    found = ReplaceTokens()(
        *map(ops.convert_to_tensor, (token_ids, positions, mask_ids, logits, np.full((2, 2), 0.5, "float32")))
    )
    np.testing.assert_array_equal(as_numpy(found["token_ids"]), [[2, 5, 7, 8, 3], [2, 8, 7, 3, 0]])
    expected = [[False, False, False, True, False], [False, False, True, False, False]]
    np.testing.assert_array_equal(as_numpy(found["is_replaced"]), expected)


def test_detection_logits_have_the_loss_of_a_binary_classification():
    rng = np.random.default_rng(1)
    logits, is_replaced = rng.normal(0, 3, (4, 6)).astype("float32"), rng.random((4, 6)) < 0.3
    found_logits = as_numpy(DetectionLogits()(ops.convert_to_tensor(logits), ops.convert_to_tensor(is_replaced)))
    found = np.log(np.exp(found_logits).sum(-1)) - found_logits[..., 1]
    share = 1 / (1 + np.exp(-logits.astype("float64")))
    np.testing.assert_allclose(found, -np.log(np.where(is_replaced, share, 1 - share)), rtol=1e-4)
    np.testing.assert_array_equal(found_logits.argmax(-1) == 1, (logits > 0) == is_replaced)


def test_detection_logits_are_read_by_the_name_in_saved_files():
    saved = keras.saving.serialize_keras_object(DetectionLogits(name="rtd"))
    assert saved["registered_name"] == "keras_bert_flow>Verdicts"
    earlier = saved | {"class_name": "Verdicts"}
    assert type(keras.saving.deserialize_keras_object(earlier)) is DetectionLogits
