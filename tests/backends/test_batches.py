"""What TensorFlow is told of Grain's batches."""

import grain
import keras
import numpy as np
import pytest

from keras_bert_flow.backends.batches import take_batches

IS_TENSORFLOW = keras.backend.backend() == "tensorflow"
BATCHES = [
    ({"token_ids": np.zeros((rows, width), "int32")}, np.zeros(rows)) for rows, width in ((4, 7), (3, 7), (4, 9))
]


def make_batches():
    return grain.MapDataset.source(BATCHES).to_iter_dataset()


@pytest.mark.skipif(not IS_TENSORFLOW, reason="on TensorFlow only")
@pytest.mark.parametrize(("has_one_width", "width"), [(False, None), (True, 7)])
def test_rows_are_free_and_nothing_is_tuned(has_one_width, width):
    batches = take_batches(make_batches(), has_one_width)
    inputs, labels = batches.element_spec
    assert inputs["token_ids"].shape.as_list() == [None, width] and labels.shape.as_list() == [None]
    assert inputs["token_ids"].dtype == "int32"
    assert batches.options().autotune.enabled is False
    for (inputs, _), (expected, _) in zip(batches.take(2), BATCHES, strict=False):
        np.testing.assert_array_equal(inputs["token_ids"], expected["token_ids"])


def test_what_is_no_data_set_of_grain_is_left_alone():
    assert take_batches(BATCHES) is BATCHES
    assert take_batches(None) is None


@pytest.mark.skipif(IS_TENSORFLOW, reason="on the others")
def test_other_backends_read_grain_themselves():
    batches = make_batches()
    assert take_batches(batches) is batches
