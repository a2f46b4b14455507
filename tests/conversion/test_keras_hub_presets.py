"""Presets of KerasHub, held against KerasHub itself: its models give here what they give there, and ours there."""

import json
import warnings

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_bert_flow as kbf
from keras_bert_flow.conversion.convert import convert
from keras_bert_flow.conversion.model_directory import save_model_directory
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL

pytest.importorskip("keras_hub", reason="the oracle is keras-hub")
from tests.oracles import keras_hub_models as hub

# Both compute in float32, in another order of sums; up to 5e-6 seen.
ATOL = 1e-5
# What KerasHub's classes compute, where it is not what ours compute by default.
ARITHMETIC = {
    "bert": {"hidden_act": "gelu_tanh", "mlm_hidden_act": "gelu", "mlm_layer_norm_epsilon": 1e-5},
    "albert": {"mlm_layer_norm_epsilon": 1e-5, "embedding_dim": 10},
    "distilbert": {"mlm_layer_norm_epsilon": 1e-5},
    "electra": {"hidden_act": "gelu_tanh", "embedding_dim": 10},
    "roberta": {},
}

# On each backend; the others, whose layers are the same, on PyTorch.
MAIN = [("bert", "MaskedLM"), ("bert", "TextClassifier")]
CASES = [pytest.param(*case, marks=() if case in MAIN else pytest.mark.any_backend) for case in hub.CASES]


def read_tensors(folder):
    return {name: value.tobytes() for name, value in load_file(folder / "model.safetensors").items()}


@pytest.mark.parametrize(("family", "task"), CASES)
@pytest.mark.slow_compiled
@pytest.mark.first_form
def test_model_of_keras_hub_gives_the_same_here(tmp_path, family, task):
    theirs = hub.make_theirs(family, task)
    theirs.save_to_preset(str(tmp_path / "preset"))
    convert(tmp_path / "preset", tmp_path / "ours")
    ours = hub.OURS[task].from_preset(tmp_path / "ours")
    rows = hub.make_rows()
    expected = hub.call(theirs, rows)
    hub.assert_same(expected, hub.call(ours, rows), ATOL)
    convert(tmp_path / "ours", tmp_path / "again", "kerashub")
    options = {} if task == "Backbone" else {"preprocessor": None}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Keras warns of variables that it did not find
        again = hub.find_class(family, task).from_preset(str(tmp_path / "again"), **options)
    if task != "Backbone":  # from the file, where it is beside the weights
        assert float(again.optimizer.learning_rate) == float(theirs.optimizer.learning_rate)
    found = hub.call(again, rows)
    # The pooler of ELECTRA is in no checkpoint of Hugging Face.
    kept = [name for name in expected if (family, name) != ("electra", "pooled_output")]
    assert all(np.array_equal(found[name], expected[name]) for name in kept) and kept


@pytest.mark.any_backend
@pytest.mark.parametrize(("family", "task"), hub.CASES)
@pytest.mark.first_form
def test_our_model_gives_the_same_there_and_comes_back(tmp_path, family, task):
    use_pooler = {"MaskedLM": False, "TextEmbedder": False, "TextClassifier": True}.get(task)
    backbone = kbf.Backbone(family, use_pooler=use_pooler, **SMALL | ARITHMETIC[family])
    options = {"num_classes": 3, "labels": ["no", "?", "yes"], "dropout_rate": 0.3} if task == "TextClassifier" else {}
    ours = backbone if task == "Backbone" else hub.OURS[task](backbone, **options)
    numpy_bert.randomise_weights(ours, 4)
    save_model_directory(ours, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "preset", "kerashub")
    theirs = hub.find_class(family, task).from_preset(str(tmp_path / "preset"))
    rows = hub.make_rows(1)
    hub.assert_same(hub.call(theirs, rows), hub.call(ours, rows), ATOL)
    convert(tmp_path / "preset", tmp_path / "again")
    assert read_tensors(tmp_path / "ours") == read_tensors(tmp_path / "again")
    configs = [json.loads((tmp_path / name / "config.json").read_text()) for name in ("ours", "again")]
    assert configs[0] == configs[1]
