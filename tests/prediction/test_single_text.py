"""A single text is one item, and what is no text is refused in one line."""

import numpy as np
import pytest

import keras_bert_flow as kbf
from tests.prediction.models import save_classifier, save_masked_lm

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    classifier = save_classifier(tmp_path_factory.mktemp("classifier"))
    masked_lm = save_masked_lm(tmp_path_factory.mktemp("masked_lm"))
    others = {kind: kbf.load(masked_lm, task=kind) for kind in ("fill_mask", "features", "sentence_embedding")}
    return {"classification": kbf.load(classifier)} | others


KINDS = pytest.mark.parametrize("kind", ["classification", "fill_mask", "features", "sentence_embedding"])


@KINDS
def test_single_text_is_one_text(asked, kind):
    model = asked[kind]
    text = "un [MASK] able" if kind == "fill_mask" else "unable"
    expected = repr(model.predict([text]))
    assert repr(model.predict(text)) == repr(model.predict({"text": text})) == expected
    assert repr(model.predict(np.array([text]))) == repr(list(model.predict_stream(text))) == expected
    assert len(model.predict(text)) == 1


@KINDS
@pytest.mark.parametrize("items", [3, 2.5, None, True, b"unable", bytearray(b"x"), np.array("unable")], ids=repr)
def test_what_is_no_text_is_refused(asked, kind, items):
    with pytest.raises(TypeError, match=r"^Items must be a text, or a list of items\. Received: \w+\. Give.*\.$"):
        asked[kind].predict(items)


@KINDS
@pytest.mark.parametrize("item", [3, None, b"unable", ["unable"] * 3, [["unable"]], {"nope": "unable"}, " "], ids=repr)
def test_item_that_is_no_text_is_refused_by_number(asked, kind, item):
    good = "un [MASK] able" if kind == "fill_mask" else "unable"
    with pytest.raises(ValueError, match=r"^Item 2: An item for this task must have the texts text\b[^\n]*$"):
        asked[kind].predict([good, item])


def test_single_text_is_embedded_once(asked):
    model = asked["sentence_embedding"]
    np.testing.assert_array_equal(model.embed("unable"), model.embed(["unable"]))


def test_single_query_is_searched_once(asked, tmp_path):
    from keras_bert_flow.prediction.search import SemanticSearch

    folder = save_masked_lm(tmp_path)
    (tmp_path / "lines.txt").write_text("unable\nable\n")
    (found,) = SemanticSearch(folder, tmp_path / "lines.txt").search("unable")
    assert found["query"] == "unable"
