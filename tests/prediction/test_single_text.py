"""A single text is one item, and what is no text is refused in one line."""

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.tasks.core.texts import make_text_example
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
@pytest.mark.parametrize("item", [3, None, b"unable", ["unable"] * 3, [["unable"]], {"nope": "unable"}], ids=repr)
def test_item_that_is_no_text_is_refused_by_number(asked, kind, item):
    good = "un [MASK] able" if kind == "fill_mask" else "unable"
    with pytest.raises(ValueError, match=r"^Item 2: An item for this task must have the texts text\b[^\n]*$"):
        asked[kind].predict([good, item])


@KINDS
def test_blank_items_have_answers_as_all_others(asked, kind, tmp_path):
    model = asked[kind]
    text = "un [MASK] able" if kind == "fill_mask" else "unable"
    one, blank = model.predict(text), model.predict("")
    expected = [*one, *blank, *blank, *one]
    assert_alike(model.predict([text, "", " \t", text]), expected)
    if kind == "fill_mask":
        assert blank == [[]]  # a list for each mask
    if kind == "features":
        assert blank[0]["tokens"] == ["[CLS]", "[SEP]"]
    if kind != "classification":
        path = tmp_path / "t.txt"
        path.write_text(f"{text}\n\n   \n{text}\n")  # the last line end begins no line
        (answers,) = model.answer_blocks(model.read(path))
        assert_alike(answers, expected)


def assert_alike(found, expected):
    """Compare predictions up to the roundings of another batch."""
    assert len(found) == len(expected)
    for some, others in zip(found, expected, strict=True):
        paths = [leaves(one) for one in (some, others)]
        np.testing.assert_allclose(*([v for v in path if not isinstance(v, str)] for path in paths), atol=1e-5)
        assert [v for v in paths[0] if isinstance(v, str)] == [v for v in paths[1] if isinstance(v, str)]


def leaves(value):
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    if parts is not None:
        return [leaf for part in parts for leaf in leaves(part)]
    return value.ravel().tolist() if isinstance(value, np.ndarray) else [value]


def test_blank_pair_has_its_separators():
    assert make_text_example("", is_pair=True) == make_text_example(["", ""], is_pair=True)


def test_single_text_is_embedded_once(asked):
    model = asked["sentence_embedding"]
    np.testing.assert_array_equal(model.embed("unable"), model.embed(["unable"]))


def test_single_query_is_searched_once(asked, tmp_path):
    from keras_bert_flow.prediction.search import SemanticSearch

    folder = save_masked_lm(tmp_path)
    (tmp_path / "lines.txt").write_text("unable\nable\n")
    (found,) = SemanticSearch(folder, tmp_path / "lines.txt").search("unable")
    assert found["query"] == "unable"
