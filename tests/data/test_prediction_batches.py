"""Outputs of a model come in the order of the rows, from few shapes of batches and from no row but those given."""

from dataclasses import replace

import keras
import numpy as np
import pytest

from keras_bert_flow.data.tasks import TaskBatches, predict_features
from tests.data.numbered_rows import LENGTHS, make_features

pytestmark = pytest.mark.any_backend


class Numbering:
    """A model whose outputs are the number of the row, and the place of each token; it notes what it is asked."""

    output = {"row": keras.KerasTensor((None, 2)), "token": keras.KerasTensor((None, None))}

    def __init__(self):
        self.asked = []

    @property
    def shapes(self):
        return set(self.asked)

    def predict_on_batch(self, x):
        self.asked.append(x["token_ids"].shape)
        numbers, width = x["token_ids"][:, 0], x["token_ids"].shape[1]
        return {"row": np.stack([numbers, -numbers], axis=1), "token": numbers[:, None] * 100 + np.arange(width)}


@pytest.mark.parametrize("positions", [1, 100, 10_000])
def test_predictions_are_in_the_order_of_the_rows(positions):
    model = Numbering()
    found = predict_features(model, make_features(), max_widths=3, batch_positions=positions)
    np.testing.assert_array_equal(found["row"], np.arange(45)[:, None] * [1, -1])
    assert found["row"].dtype == np.float32
    assert [row.tolist() for row in found["token"]] == [
        [number * 100 + place for place in range(length)] for number, length in enumerate(LENGTHS)
    ]
    assert len({width for _, width in model.shapes}) <= 3
    assert len(model.shapes) <= 6  # full batches, and for each width a last one


@pytest.mark.parametrize("positions", [1, 100, 10_000])
def test_model_that_compiles_no_shapes_is_asked_nothing_besides(positions):
    model = Numbering()
    model.compiles_shapes = False
    found = predict_features(model, make_features(), max_widths=3, batch_positions=positions)
    np.testing.assert_array_equal(found["row"][:, 0], np.arange(45))
    assert sum(rows for rows, _ in model.asked) == 45
    assert {width for _, width in model.asked} <= set(LENGTHS)


def test_outputs_of_texts_are_not_those_of_tokens():
    class Vectors:
        """A model whose vectors are the number of each text; a row has as many texts as it is given."""

        output = keras.KerasTensor((None, None, 2))

        def predict_on_batch(self, x):
            return np.stack([x["token_ids"][..., 0], -x["token_ids"][..., 0]], axis=-1)

    for texts in (1, 3):
        features = replace(make_features(sequences_per_row=texts), keeps_axis=True)
        found = predict_features(Vectors(), features)["logits"]
        assert found.shape == (45 // texts, texts, 2)
        np.testing.assert_array_equal(found.reshape(45, 2), np.arange(45)[:, None] * [1, -1])


def test_no_batch_is_wider_than_sequences_were_cut_to():
    model, features = Numbering(), replace(make_features([3, 12]), sequence_length=12)
    assert TaskBatches(features, 2)[0][0]["token_ids"].shape == (2, 12)
    predict_features(model, features)
    assert {width for _, width in model.shapes} == {12}


def test_a_single_row_is_asked_for_alone():
    model = Numbering()
    predict_features(model, make_features([5]))
    assert model.shapes == {(1, 8)}
