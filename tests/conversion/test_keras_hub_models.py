"""Live models go to KerasHub and back with their heads."""

import importlib.util

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from tests.oracles import numpy_bert
from tests.oracles.small_bert import TINY

pytest.importorskip("keras_hub", reason="the oracle is keras-hub")
from tests.oracles import keras_hub_models as hub

BERT = {"vocabulary_size": 50, "max_positions": 16, **TINY, "hidden_act": "gelu_tanh"}
ROWS = hub.make_rows()


def make(kind, **options):
    use_pooler = kind not in (kbf.MaskedLM, kbf.TextEmbedder, kbf.QuestionAnswerer)
    model = kind(kbf.Backbone(**BERT, use_pooler=use_pooler), **options)
    numpy_bert.randomise_weights(model, 2)
    return model


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (kbf.TextClassifier, {"num_classes": 3}),
        pytest.param(kbf.MultiLabelClassifier, {"num_classes": 3}, marks=pytest.mark.any_backend),
        pytest.param(kbf.TextRegressor, {}, marks=pytest.mark.any_backend),
        pytest.param(kbf.TextEmbedder, {"pooling": "max", "normalize": False}, marks=pytest.mark.any_backend),
    ],
)
@pytest.mark.any_backend
def test_heads_go_to_keras_hub(kind, options):
    ours = make(kind, **options)
    theirs = kbf.to_keras_hub(ours)
    found, expected = hub.call(theirs, ROWS)["sequence_output"], hub.call(ours, ROWS)["sequence_output"]
    # The promise of the project to others; a regressor has no axis for its one number.
    np.testing.assert_allclose(found.reshape(expected.shape), expected, atol=1e-5, rtol=0)


@pytest.mark.any_backend
def test_masked_lm_goes_where_its_other_epsilon_is_accepted():
    ours = make(kbf.MaskedLM)
    with pytest.raises(ValueError, match="with --mlm-gelu erf --mlm-epsilon 1e-05, in Python"):
        kbf.to_keras_hub(ours)
    theirs = kbf.to_keras_hub(ours, mlm_gelu="erf", mlm_epsilon=1e-5)
    back = kbf.from_keras_hub(theirs)
    assert (back.backbone.mlm_hidden_act, back.backbone.mlm_layer_norm_epsilon) == ("gelu", 1e-5)
    hub.assert_same(hub.call(theirs, ROWS), hub.call(back, ROWS), 1e-5)
    far = np.abs(hub.call(ours, ROWS)["sequence_output"] - hub.call(back, ROWS)["sequence_output"]).max()
    assert 1e-5 < far < 1e-2  # what was accepted shows, and is small


@pytest.mark.any_backend
def test_models_of_keras_hub_come_here_with_their_heads():
    theirs = hub.make_theirs("bert", "TextClassifier")
    ours = kbf.from_keras_hub(theirs, labels=["no", "?", "yes"], dropout_rate=0.3)
    assert type(ours) is kbf.TextClassifier and ours.labels == ("no", "?", "yes") and ours.dropout_rate == 0.3
    hub.assert_same(hub.call(theirs, ROWS), hub.call(ours, ROWS), 1e-5)
    embedder = kbf.from_keras_hub(hub.make_theirs("bert", "TextEmbedder"))
    assert type(embedder) is kbf.TextEmbedder and (embedder.pooling, embedder.normalize) == ("max", False)
    sizes = hub.FAMILIES["bert"][1]
    theirs = hub.find_class("bert", "TextClassifier")(
        hub.find_class("bert", "Backbone")(**sizes, dtype="mixed_bfloat16"), num_classes=2, activation="sigmoid"
    )
    ours = kbf.from_keras_hub(theirs)
    assert type(ours) is kbf.MultiLabelClassifier and ours.dtype_policy.name == "mixed_bfloat16"
    assert kbf.to_keras_hub(ours).dtype_policy.name == "mixed_bfloat16"


@pytest.mark.any_backend
def test_vocabulary_makes_a_preprocessor(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(45))]) + "\n")
    theirs = kbf.to_keras_hub(make(kbf.TextClassifier, num_classes=3), path)
    outputs = theirs.preprocessor(["w1 W2"])
    ids = np.asarray(keras.ops.convert_to_numpy(outputs["token_ids"]))
    assert ids.tolist() == [[2, 6, 7, 3, *[0] * 12]]


@pytest.mark.any_backend
def test_what_cannot_go_is_told():
    with pytest.raises(ValueError, match="must have a class.*Received: BertForQuestionAnswering; it has BertBackbone"):
        kbf.to_keras_hub(make(kbf.QuestionAnswerer))
    for convert in (kbf.to_keras_hub, kbf.from_keras_hub):
        with pytest.raises(TypeError, match="Received: Sequential"):
            convert(keras.Sequential())


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for convert in (kbf.to_keras_hub, kbf.from_keras_hub):
        with pytest.raises(ValueError, match=r"keras_hub, not installed. pip install 'keras-bert-flow\[keras-hub\]'"):
            convert(None)
