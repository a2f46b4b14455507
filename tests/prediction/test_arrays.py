"""Features as arrays: those of the predictions, text by text, and no half a file."""

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.prediction.lines import write_arrays
from tests.prediction.models import save_masked_lm

TEXTS = ["the cat is", "w1", "w2 w3 schön w4 w5"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_masked_lm(tmp_path_factory.mktemp("masked_lm"))


def test_arrays_are_the_features_of_each_token(folder, tmp_path):
    found = kbf.load(folder, task="features", layers=[0, 1]).predict(TEXTS)
    write_arrays([found[:2], found[2:]], tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as arrays:
        features, tokens, lengths = (arrays[name] for name in ("features", "tokens", "lengths"))
    assert (features.dtype, features.shape) == (np.float32, (5 + 3 + 7, 48))
    assert lengths.tolist() == [5, 3, 7]
    for part, names, prediction in zip(
        *(np.split(values, lengths.cumsum()[:-1]) for values in (features, tokens)), found, strict=True
    ):
        np.testing.assert_array_equal(part, prediction["features"])
        assert names.tolist() == prediction["tokens"]
    assert [path.name for path in tmp_path.iterdir()] == ["out.npz"]


def test_pooled_features_are_a_row_a_text(folder, tmp_path):
    found = kbf.load(folder, task="features", pooling="mean").predict(TEXTS)
    write_arrays([found], tmp_path / "out.npz")
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_array_equal(arrays["features"], np.stack([prediction["features"] for prediction in found]))
        assert arrays["lengths"].tolist() == [5, 3, 7]


def test_items_are_texts_and_pairs(folder):
    extractor = kbf.load(folder, task="features")
    items = ["w1 w2", ["w1", "w2"], {"text": "w1", "text_pair": "w2"}, {"text": "w1 w2"}]
    one, pair, again, other = extractor.predict(items)
    assert one["tokens"] == other["tokens"] == ["[CLS]", "w1", "w2", "[SEP]"]
    assert pair["tokens"] == again["tokens"] == ["[CLS]", "w1", "[SEP]", "w2", "[SEP]"]
    for item in (7, ["a", "b", "c"], {"question": "q"}):
        with pytest.raises(ValueError, match="^Item 1: An item for this task must have the texts"):
            extractor.predict([item])


@pytest.mark.parametrize(("predictions", "message"), [([{"label": "a"}], "another kind"), ([], "Received: none")])
def test_what_has_no_features_is_refused_and_nothing_is_written(tmp_path, predictions, message):
    with pytest.raises(ValueError, match=message):
        write_arrays([predictions], tmp_path / "out.npz")
    assert not list(tmp_path.iterdir())
