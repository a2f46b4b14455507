"""Loading for a task: heads and poolers that are there, missing, or another task's."""

import json
import logging

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.config.finetuning import HEADLESS
from keras_bert_flow.conversion.model_directory import load_task_model
from keras_bert_flow.models.saved_as import TASK_HEADS
from keras_bert_flow.tasks.registry import KINDS
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL
from tests.oracles.task_models import CASES, make_task_model

LABELLED = ("classification", "multi_label", "token_classification")
HEADS = {kind: "span/" if kind == "question_answering" else "classifier/" for kind in TASK_HEADS}


def values_of(model, without=()):
    pairs = zip(model.weights, model.get_weights(), strict=True)
    return {variable.path: value for variable, value in pairs if not variable.path.startswith(without)}


def assert_same(ours, theirs):
    assert list(ours) == list(theirs)
    for path, value in ours.items():
        np.testing.assert_array_equal(value, theirs[path], err_msg=path)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    """Return the folder of a pre-trainer, whose encoder has a pooler, and the weights of that encoder."""
    model = kbf.BertPretrainer(kbf.BertBackbone(**SMALL))
    numpy_bert.randomise_weights(model, seed=1)
    folder = tmp_path_factory.mktemp("pretrained")
    model.save_to_preset(folder)
    return folder, values_of(model.backbone)


def test_kinds_are_those_of_tasks():
    assert set(TASK_HEADS) == set(KINDS) == set(CASES) - {"embedding", "cosine_pairs"}
    for kind in TASK_HEADS:
        assert TASK_HEADS.find(kind) is CASES[kind].make.func


def test_task_says_without_keras_how_its_head_is_saved():
    for kind in KINDS:
        task, saved = KINDS.find(kind), TASK_HEADS.find(kind).saved_as
        assert bool(saved.head) == (kind not in HEADLESS)
        assert task.architecture == (saved.architecture if saved.head else None)
        assert task.problem_type == saved.problem_type
        assert task.has_classes == (kind in LABELLED)


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", TASK_HEADS)
def test_new_head_stands_on_the_encoder_of_a_pretrainer(pretrained, kind):
    folder, weights = pretrained
    labels = ("one", "two", "three") if kind in LABELLED else ()
    model = load_task_model(kind, folder, labels, dropout_rate=0.4, dtype="mixed_bfloat16", name="mine")
    if not CASES[kind].use_pooler:
        weights = {path: value for path, value in weights.items() if not path.startswith("pooler/")}
    assert_same(values_of(model, without=HEADS[kind]), weights)
    head = {path: value for path, value in values_of(model).items() if path.startswith(HEADS[kind])}
    assert [path for path, value in head.items() if value.any()] == [path for path in head if "kernel" in path]
    assert (model.name, model.backbone.compute_dtype) == ("mine", "bfloat16")
    assert model.backbone.dropout_rate == getattr(model, "dropout_rate", 0.4) == 0.4
    if labels:
        assert (model.labels, model.num_classes) == (labels, 3)


@pytest.mark.parametrize("kind", TASK_HEADS)
@pytest.mark.slow_on_tensorflow
def test_task_model_round_trip(tmp_path, kind):
    model = make_task_model(kind)
    model.save_to_preset(tmp_path)
    again = load_task_model(kind, tmp_path, needs_head=True)
    assert again.get_config() == model.get_config()
    assert_same(values_of(again), values_of(model))
    assert_same(values_of(type(model).from_preset(tmp_path)), values_of(model))


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", [kind for kind in TASK_HEADS if kind != "sentence_embedding"])
@pytest.mark.first_form
def test_head_of_another_task_is_not_taken(tmp_path, kind):
    for other in TASK_HEADS:
        if other != kind:
            make_task_model(other).save_to_preset(tmp_path / other)
            labels = ("x", "y", "z") if kind in LABELLED else ()
            with pytest.raises(ValueError, match=f"{other}: there is no .* in it. Fine-tune"):
                load_task_model(kind, tmp_path / other, labels, needs_head=True)
            model = load_task_model(kind, tmp_path / other, labels)
            assert getattr(model, "labels", None) == (labels or None)


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", ["classification", "regression", "multiple_choice"])
def test_new_pooler_stands_on_an_encoder_without_one(tmp_path, kind):
    token_model = make_task_model("token_classification")
    token_model.save_to_preset(tmp_path)
    labels = ("no", "yes") if kind in LABELLED else ()
    model = load_task_model(kind, tmp_path, labels)
    assert model.backbone.use_pooler
    new = ("pooler/", "classifier/")
    assert_same(values_of(model, without=new), values_of(token_model, without=new))
    assert values_of(model)["pooler/dense/kernel"].any()


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", LABELLED)
def test_new_classes_must_be_named_or_counted(pretrained, kind):
    folder, _ = pretrained
    with pytest.raises(ValueError, match=f"{folder}: there is no .*classifier in it.*`num_classes` or `labels`"):
        load_task_model(kind, folder)
    assert load_task_model(kind, folder, num_classes=4).num_classes == 4


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", LABELLED)
def test_classes_of_a_directory_stay(tmp_path, kind):
    model = make_task_model(kind)
    model.save_to_preset(tmp_path)
    assert load_task_model(kind, tmp_path, model.labels).labels == model.labels
    with pytest.raises(ValueError, match=r"config.json: `labels` must be those of the model. Received: labels=\['x'"):
        load_task_model(kind, tmp_path, ("x", "y", "z"))
    with pytest.raises(ValueError, match="has 3 classes. Received: num_classes=2"):
        load_task_model(kind, tmp_path, num_classes=2)


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", LABELLED)
def test_new_head_replaces_that_of_the_directory(tmp_path, kind):
    model = make_task_model(kind)
    model.save_to_preset(tmp_path)
    with pytest.raises(ValueError, match="--new-head"):
        type(model).from_preset(tmp_path, labels=("x", "y"))
    fresh = type(model).from_preset(tmp_path, labels=("x", "y"), new_head=True)
    assert fresh.labels == ("x", "y")
    same = load_task_model(kind, tmp_path, model.labels, new_head=True)
    theirs, ours = ({v.path: np.array(v) for v in each.weights} for each in (model, same))
    assert [path for path in ours if not np.array_equal(ours[path], theirs[path])] == [
        path for path in ours if path.startswith("classifier/")
    ]


@pytest.mark.any_backend
def test_problem_that_nobody_wrote_down_goes_by_its_outputs(tmp_path):
    """`transformers` has one class for three problems, and writes down which one only when it was told or trained."""
    for kind, fits in (("classification", {"classification", "multi_label"}), ("regression", {"regression"})):
        make_task_model(kind).save_to_preset(tmp_path / kind)
        path = tmp_path / kind / "config.json"
        config = json.loads(path.read_text())
        del config["problem_type"]
        path.write_text(json.dumps(config))
        for asked in fits:
            assert load_task_model(asked, tmp_path / kind, needs_head=True)
        for asked in {"classification", "regression"} - fits:
            with pytest.raises(ValueError, match="there is no|needs `num_classes`"):
                load_task_model(asked, tmp_path / kind, needs_head=True)


@pytest.mark.any_backend
def test_head_of_a_directory_without_its_name_is_taken(tmp_path):
    """Some save a head and leave the name of the model that they began with, or none."""
    model = make_task_model("token_classification")
    model.save_to_preset(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for names in (["BertForMaskedLM"], ["MyTagger"], None):
        (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": names}))
        assert_same(values_of(load_task_model("token_classification", tmp_path, needs_head=True)), values_of(model))


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("tagging", {}, "must be one of classification, .*sentence_embedding. Received: 'tagging'"),
        ("regression", {"labels": ("a",)}, r"regression has no labels. Received: labels=\['a'\]"),
        ("regression", {"num_classes": 2}, "among dropout_rate, .* Received: num_classes"),
        ("classification", {"normalize": True}, "among .*pooling. Received: normalize"),
        ("regression", {"pooling": "max"}, "must be one of cls, mean, bag_of_words. Received: pooling=.max"),
        ("sentence_embedding", {"pooling": "last"}, "Received: pooling='last'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(pretrained, kind, arguments, message):
    with pytest.raises(ValueError, match=message) as caught:
        load_task_model(kind, pretrained[0], **arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.any_backend
def test_new_head_that_nobody_spoke_of_is_warned_of(pretrained, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        load_task_model("question_answering", pretrained[0])
        kbf.TextClassifier.from_preset(pretrained[0], labels=["a", "b"])
        kbf.TextEmbedder.from_preset(pretrained[0])
        assert not caplog.records
        kbf.QuestionAnswerer.from_preset(pretrained[0])
    assert "has no question answerer: its weights begin anew" in caplog.text


def test_pairs_are_saved_as_their_embedder(tmp_path):
    pairs = make_task_model("cosine_pairs")
    pairs.save_to_preset(tmp_path)
    embedder = kbf.TextEmbedder.from_preset(tmp_path)
    assert (embedder.pooling, embedder.normalize) == ("max", True)
    assert_same(values_of(embedder), values_of(pairs))
    again = kbf.PairEmbedder.from_preset(tmp_path, objective="cosine", scale=5.0)
    assert (again.objective, again.scale, again.pooling) == ("cosine", 5.0, "max")
    assert_same(values_of(again), values_of(pairs))
