"""Texts of a row: merged and parted in their order."""

import keras
import numpy as np
import pytest

from keras_bert_flow.layers.encoder import ChoiceScores, MergeTexts, SplitTexts
from keras_bert_flow.layers.heads import SpanScores
from keras_bert_flow.layers.masks import MASKED_SCORE

RNG = np.random.default_rng(0)


def numpy(tensor):
    return keras.ops.convert_to_numpy(tensor)


def test_merged_texts_come_back_in_their_order():
    token_ids = np.arange(2 * 3 * 4).reshape(2, 3, 4)
    merged = numpy(MergeTexts()(token_ids))
    np.testing.assert_array_equal(merged, np.arange(24).reshape(6, 4))
    mask = np.ones((2, 3, 4), "int32")
    mask[1, 2] = 0  # filler
    mask[0, 1, 2:] = 0  # a short text
    scores = numpy(ChoiceScores()(merged[:, :1].astype("float32"), mask))
    np.testing.assert_array_equal(scores, np.array([[0, 4, 8], [12, 16, MASKED_SCORE]], "float32"))


def test_split_vectors_are_those_of_their_rows():
    vectors = np.arange(6 * 4, dtype="float32").reshape(6, 4)
    for texts in (1, 2, 3):
        split = numpy(SplitTexts()(vectors, np.ones((6 // texts, texts, 5), "int32")))
        np.testing.assert_array_equal(split, vectors.reshape(6 // texts, texts, 4))


@pytest.mark.parametrize("mask_type", ["int32", "bool"])
def test_span_scores_let_padding_lose(mask_type):
    logits = RNG.normal(size=(2, 3, 2)).astype("float32")
    mask = np.array([[1, 1, 0], [0, 0, 0]], mask_type)
    scores = SpanScores(dtype="float32")(logits, mask)
    assert set(scores) == {"start", "end"}
    for place, name in enumerate(("start", "end")):
        expected = np.where(mask, logits[..., place], np.float32(MASKED_SCORE))
        np.testing.assert_array_equal(numpy(scores[name]), expected)
        assert np.isfinite(numpy(scores[name])).all()
