"""Heads for whole texts that pool otherwise than BERT's: by transformers' encoder, saved, loaded, refused."""

import json

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_bert_flow as kbf
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.conversion.convert import convert
from keras_bert_flow.conversion.model_directory import load_task_model
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL
from tests.oracles.task_models import call, make_task_inputs

torch = pytest.importorskip("torch", reason="the reference needs torch")
transformers = pytest.importorskip("transformers", reason="the reference needs transformers")

CLASSES = {
    "classification": (kbf.TextClassifier, {"num_classes": 3, "labels": ["no", "?", "yes"]}),
    "regression": (kbf.TextRegressor, {}),
    "multi_label": (kbf.MultiLabelClassifier, {"num_classes": 3, "labels": ["a", "b", "c"]}),
}
EVERY_POOLING = pytest.mark.parametrize("pooling", ["mean", "bag_of_words"])
EVERY_KIND = pytest.mark.parametrize("kind", CLASSES)
TOLERANCE = 1e-5  # float32 rounding (6e-8) of values up to 10 through sums of up to 40 terms


def make_model(kind, pooling="mean", family="bert"):
    model_class, options = CLASSES[kind]
    backbone = kbf.Backbone(family, **SMALL | {"num_layers": 1, "use_pooler": pooling == "cls"})
    model = model_class(backbone, pooling=pooling, **options)
    numpy_bert.randomise_weights(model, 7)
    return model


def predict_reference(folder, inputs):
    """Return the logits that transformers' encoder and the saved classifier give, and which rows are not empty."""
    encoder = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    tensors = transformers.modeling_utils.load_state_dict(folder / "model.safetensors")
    mask = torch.tensor(inputs["padding_mask"])
    names = {"input_ids": "token_ids", "token_type_ids": "segment_ids", "attention_mask": "padding_mask"}
    with torch.no_grad():
        sequence = encoder(**{name: torch.tensor(inputs[ours]).long() for name, ours in names.items()})[0]
        vector = (sequence * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        if "cls.words.transform.dense.weight" in tensors:
            head = transformers.models.bert.modeling_bert.BertPredictionHeadTransform(encoder.config)
            prefix = "cls.words.transform."
            head.load_state_dict({name.removeprefix(prefix): tensors[name] for name in tensors if prefix in name})
            vector = head(vector)
        logits = torch.nn.functional.linear(vector, tensors["classifier.weight"][..., 0], tensors["classifier.bias"])
    return logits.numpy(), inputs["padding_mask"].any(axis=-1)


@EVERY_POOLING
@EVERY_KIND
@pytest.mark.first_form_compiled
def test_mean_of_real_tokens_is_classified(tmp_path, kind, pooling):
    model, inputs = make_model(kind, pooling), make_task_inputs(kind)
    model.save_to_preset(tmp_path)
    expected, is_real = predict_reference(tmp_path, inputs)
    ours = call(model, inputs)["output"].reshape(len(is_real), -1)
    np.testing.assert_allclose(ours[is_real], expected[is_real], atol=TOLERANCE, rtol=0)
    assert not np.allclose(ours[is_real], ours[is_real][:1])  # texts differ, or padding would not show


@EVERY_POOLING
@EVERY_KIND
@pytest.mark.slow_compiled
def test_pooling_comes_back_from_a_model_directory(tmp_path, kind, pooling):
    model, inputs = make_model(kind, pooling), make_task_inputs(kind)
    model.save_to_preset(tmp_path)
    again = load_task_model(kind, tmp_path, needs_head=True)
    assert again.pooling == pooling
    np.testing.assert_array_equal(call(again, inputs)["output"], call(model, inputs)["output"])
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    assert twin.get_config() == model.get_config()


def test_only_the_mean_is_named_in_the_configuration(tmp_path):
    for pooling in ("cls", "mean"):
        make_model("classification", pooling).save_to_preset(tmp_path / pooling)
    stored = {pooling: json.loads((tmp_path / pooling / "config.json").read_text()) for pooling in ("cls", "mean")}
    assert stored["mean"]["classifier_pooling"] == "mean"
    assert "classifier_pooling" not in stored["cls"]


@pytest.mark.parametrize("head", [kbf.TextClassifier, kbf.MultiLabelClassifier, kbf.TextRegressor])
@pytest.mark.slow_on_tensorflow
def test_default_pooling_follows_the_backbone(tmp_path, head):
    names = {} if head is kbf.TextRegressor else {"labels": ["no", "yes"]}
    for use_pooler, pooling in ((True, "cls"), (False, "mean")):
        model = head(kbf.BertBackbone(**SMALL, use_pooler=use_pooler), **names)
        assert model.pooling == pooling
        assert model.get_config()["pooling"] == pooling
        model.save_to_preset(tmp_path / pooling)
        assert head.from_preset(tmp_path / pooling).pooling == pooling


@pytest.mark.any_backend
def test_labels_count_the_classes():
    backbone = kbf.BertBackbone(**SMALL, use_pooler=False)
    for head in (kbf.TextClassifier, kbf.MultiLabelClassifier, kbf.TokenClassifier):
        assert head(backbone, labels=["a", "b", "c"]).num_classes == 3
        with pytest.raises(ValueError, match="neither `labels` nor `num_classes`"):
            head(backbone)


@pytest.mark.parametrize("family", ["albert", "bert", "distilbert", "electra", "roberta"])
@pytest.mark.any_backend
@pytest.mark.first_form
def test_transformers_refuses_the_head_and_reads_the_encoder(tmp_path, family):
    model, inputs = make_model("classification", family=family), make_task_inputs("classification")
    model.save_to_preset(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "converted")
    for folder in (tmp_path / "model", tmp_path / "converted"):
        for load in (
            transformers.AutoModelForSequenceClassification.from_pretrained,
            lambda folder: transformers.pipeline("text-classification", model=str(folder)),
        ):
            with pytest.raises((RuntimeError, ValueError), match="mismatched_sizes"):
                load(folder)
        transformers.AutoModel.from_pretrained(folder)
        np.testing.assert_array_equal(
            call(kbf.TextClassifier.from_preset(folder), inputs)["output"], call(model, inputs)["output"]
        )


def test_head_of_two_axes_is_read_as_well(tmp_path):
    model, inputs = make_model("classification"), make_task_inputs("classification")
    model.save_to_preset(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["classifier.weight"] = tensors["classifier.weight"][..., 0].copy()
    save_file(tensors, tmp_path / "model.safetensors")
    np.testing.assert_array_equal(
        call(kbf.TextClassifier.from_preset(tmp_path), inputs)["output"], call(model, inputs)["output"]
    )


def test_new_head_takes_the_pooling_asked_for(tmp_path):
    make_model("classification", "cls").save_to_preset(tmp_path)
    with pytest.raises(ValueError, match="pooling='mean'.*new_head") as caught:
        load_task_model("classification", tmp_path, pooling="mean")
    assert "\n" not in str(caught.value)
    model = load_task_model("classification", tmp_path, labels=("no", "yes"), new_head=True, pooling="mean")
    assert (model.pooling, model.backbone.use_pooler) == ("mean", False)


@pytest.mark.parametrize("objective", ["mlm", "mlm_nsp"])
def test_head_of_a_bag_of_words_is_gone_on_from(tmp_path, objective):
    backbone = kbf.BertBackbone(**SMALL | {"num_layers": 1, "use_pooler": objective == "mlm_nsp"})
    inner = (kbf.BertPretrainer if objective == "mlm_nsp" else kbf.MaskedLM)(backbone)
    pretrained = kbf.BagOfWordsPretrainer(inner)
    numpy_bert.randomise_weights(pretrained, 7)
    pretrained.save_to_preset(tmp_path / "words")
    inner.save_to_preset(tmp_path / "plain")
    model = load_task_model("classification", tmp_path / "words", labels=("no", "yes"), pooling="bag_of_words")
    for name in ("words_dense", "words_norm"):
        for one, other in zip(model.get_layer(name).weights, pretrained.get_layer(name).weights, strict=True):
            np.testing.assert_array_equal(one, other)
    again = type(inner).from_preset(tmp_path / "words")  # it is still what it was before
    for one, other in zip(again.weights, inner.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="without `cls.words.transform.dense.weight`") as caught:
        load_task_model("classification", tmp_path / "plain", labels=("no", "yes"), pooling="bag_of_words")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stored", ["max", 3, ["mean"]])
def test_unknown_pooling_of_a_directory_is_refused(tmp_path, stored):
    make_model("classification").save_to_preset(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"classifier_pooling": stored}))
    with pytest.raises(ValueError, match="`classifier_pooling` must be one of cls, mean"):
        load_task_model("classification", tmp_path)


def test_pooling_must_fit_the_backbone():
    with pytest.raises(ValueError, match="without a pooler"):
        kbf.TextClassifier(kbf.BertBackbone(**SMALL), num_classes=2, pooling="mean")
    with pytest.raises(ValueError, match="cls, mean, bag_of_words"):
        kbf.TextClassifier(kbf.BertBackbone(**SMALL), num_classes=2, pooling="max")


def test_setting_goes_with_tasks_of_whole_texts():
    task = {"kind": "token_classification", "train": "a", "dev": "b"}
    with pytest.raises(ValueError, match="kind classification, regression, multi_label"):
        PipelineConfig(task=task, finetuning={"pooling": "mean"})
    assert PipelineConfig(finetuning={"pooling": "mean"}).finetuning.pooling == "mean"
