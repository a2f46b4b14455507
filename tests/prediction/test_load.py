"""What a model directory can be asked as, and what is refused, each in a line."""

from importlib import import_module
from inspect import signature

import keras
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.prediction.base_predictor import BasePredictor
from keras_bert_flow.prediction.load import ASKED_AS, OPTIONS
from keras_bert_flow.prediction.masked_lm import MaskFiller
from keras_bert_flow.prediction.predictors import FeatureExtractor, Predictor
from tests.prediction.models import save_classifier, save_masked_lm


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    return save_classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory):
    return save_masked_lm(tmp_path_factory.mktemp("masked_lm"))


def test_directories_are_asked_as_what_is_said(classifier, masked_lm):
    assert type(kbf.load(classifier)) is type(kbf.load(classifier, task="task")) is Predictor
    assert type(kbf.load(classifier, task="features", layers=[0])) is FeatureExtractor
    assert type(kbf.load(masked_lm, task="fill_mask")) is MaskFiller
    assert all(issubclass(kind, BasePredictor) for kind in (Predictor, FeatureExtractor, MaskFiller))


def test_options_are_the_arguments_of_the_classes():
    assert OPTIONS.keys() == ASKED_AS.keys()
    for name, place in ASKED_AS.items():
        module, asked_class = place.split(":")
        assert list(OPTIONS[name]) == list(signature(getattr(import_module(module), asked_class)).parameters)[1:]


def test_every_model_says_whether_its_backend_compiles_shapes(classifier, masked_lm):
    asked = [kbf.load(classifier), kbf.load(masked_lm, "fill_mask"), kbf.load(classifier, "features")]
    asked.append(kbf.load(classifier, "sentence_embedding"))
    assert [one.model.compiles_shapes for one in asked] == [keras.backend.backend() == "jax"] * 4


@pytest.mark.parametrize(
    ("folder", "task", "options", "message"),
    [
        (
            "masked_lm",
            "poetry",
            {},
            r"must be one of task, fill_mask, sentence_embedding, features. Received: 'poetry'.",
        ),
        ("masked_lm", None, {}, r"must hold task\.json.* as what it is asked: fill_mask, sentence_embedding"),
        ("masked_lm", "fill_mask", {"layers": [1]}, r"Received: layers for fill_mask. Use: top_k, batch_positions\."),
        ("classifier", None, {"top_k": 1}, r"Received: top_k for task. Use: batch_positions, threads\."),
        (
            "classifier",
            "fill_mask",
            {},
            r"no masked-token head in it, which fills masks. Take what `kbf pretrain` made",
        ),
        ("masked_lm", "fill_mask", {"top_k": 0}, r"from 1 to the size of the vocabulary, 50. Received: top_k=0"),
        ("masked_lm", "fill_mask", {"top_k": 51}, r"from 1 to the size of the vocabulary, 50. Received: top_k=51"),
        ("masked_lm", "features", {"layers": [-1, 2]}, r"from 0, .* to 1, .* to -2. Received: -1, 2"),
        ("masked_lm", "features", {"layers": [-3]}, r"to -2. Received: -3"),
        ("masked_lm", "features", {"layers": []}, r"at least one layer. Received: none"),
        ("masked_lm", "features", {"pooling": "min"}, r"`pooling` must be one of .*none.* Received: pooling='min'"),
    ],
)
def test_other_questions_are_refused_in_a_line(request, folder, task, options, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message) as caught:
        kbf.load(request.getfixturevalue(folder), task, **options)
    assert "\n" not in str(caught.value)


def test_missing_folder_is_named(tmp_path):
    for task in (None, *ASKED_AS):
        with pytest.raises(FileNotFoundError, match=f"Received: .*{tmp_path}"):
            kbf.load(tmp_path / "nowhere", task)
