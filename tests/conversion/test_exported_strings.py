"""A SavedModel that takes texts, against the tokenizers and models of `transformers`."""

import os

import numpy as np
import pytest

from keras_bert_flow.export import tensorflow_strings as strings
from keras_bert_flow.export.export_model import export_model
from tests.oracles.exported_models import save_kind

BACKEND = os.environ.get("KERAS_BACKEND", "jax")
pytestmark = [pytest.mark.skipif(BACKEND == "torch", reason="SavedModel is not written by PyTorch")]
if BACKEND == "jax":  # which writes the same graph of strings
    pytestmark.append(pytest.mark.slow)
TEXTS = ["The CAT is w1.", "Pàris", "is  the\tcat\u200b, the PARIS of w3 w4 w5?", "", "w1 " * 200]


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A model directory and what its exported model is loaded as; both take seconds."""
    import tensorflow as tf

    folder = tmp_path_factory.mktemp("strings")
    model = save_kind("token_classification", folder)
    export_model(model, folder / "served", "saved_model", strings=True)
    return model, tf.saved_model.load(folder / "served" / "saved_model")


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [None, TEXTS[::-1], TEXTS[2:] + TEXTS[:2]], ids=["single", "reversed", "turned"])
@pytest.mark.first_form
def test_texts_are_tokenized_as_by_transformers(served, pairs):
    import tensorflow as tf
    from transformers import AutoTokenizer

    model, loaded = served
    given = [TEXTS] if pairs is None else [TEXTS, pairs]
    encoded = AutoTokenizer.from_pretrained(model)(*given, padding=True, truncation=True, return_tensors="np")
    columns = [tf.constant(column) for column in given]
    tokenize = loaded.tokenize_text if pairs is None else loaded.tokenize_text_pair
    found = {name: values.numpy() for name, values in tokenize(*columns).items()}
    assert found.keys() == encoded.keys()
    for name, values in encoded.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    signature = loaded.signatures["text" if pairs is None else "text_pair"]
    answers = signature(**dict(zip(("text", "text_pair"), columns, strict=False)))["logits"]
    wanted = loaded.signatures["serving_default"](**{name: tf.constant(ids) for name, ids in found.items()})["logits"]
    np.testing.assert_array_equal(answers, wanted)


@pytest.mark.slow
def test_other_tokens_are_refused_and_nothing_is_published(tmp_path, monkeypatch):
    monkeypatch.setattr(strings, "ACCENTS", "e")  # "the" becomes "th", which is [UNK]
    model = save_kind("classification", tmp_path)
    with pytest.raises(ValueError, match="make the tokens of texts .* Received: other input_ids with tensorflow-text"):
        export_model(model, tmp_path / "out", "saved_model", strings=True)
    assert not (tmp_path / "out").exists()
