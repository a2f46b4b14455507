"""A model directory without `task.json` is asked as its `config.json` says."""

import json

import pytest

import keras_bert_flow as kbf
from keras_bert_flow.tasks.formats.tagged_words import guess_scheme
from tests.oracles.task_models import CASES
from tests.prediction.models import make_backbone, save

pytestmark = pytest.mark.any_backend
ITEMS = {
    "classification": "paris is",
    "regression": "paris is",
    "multi_label": "paris is",
    "token_classification": "paris is",
    "question_answering": {"question": "paris", "context": "the cat is"},
    "multiple_choice": {"context": "paris", "choices": ["cat", "is"]},
}


@pytest.mark.parametrize("kind", ITEMS)
def test_saved_model_is_asked_without_task_json(tmp_path, kind):
    case = CASES[kind]
    model = case.make(make_backbone(use_pooler=case.use_pooler))
    folder = save(model, tmp_path)
    assert not (folder / "task.json").exists()
    asked = kbf.load(folder)
    assert asked.task.kind == kind
    assert asked.task.labels == (tuple(model.labels) if hasattr(model, "labels") else ())
    stored = tmp_path / "stored"
    model.save_to_preset(stored, vocabulary_path=tmp_path / "words.txt", task=asked.task)
    assert kbf.load(stored).predict(ITEMS[kind]) == asked.predict(ITEMS[kind])


@pytest.mark.parametrize("kind", ITEMS)
def test_single_item_is_one_item_for_every_kind(tmp_path, kind):
    asked = kbf.load(save(CASES[kind].make(make_backbone(use_pooler=CASES[kind].use_pooler)), tmp_path))
    item = ITEMS[kind]
    expected = asked.predict([item])
    assert len(expected) == 1 and asked.predict(item) == list(asked.predict_stream(item)) == expected
    assert asked.predict(each for each in [item, item]) == asked.predict([item, item])
    for wrong in (3, None, b"paris", True):
        with pytest.raises(TypeError, match=r"^Items must be a text, or a list of items\. Received: \w+\. Give.*\.$"):
            asked.predict(wrong)
        with pytest.raises(ValueError, match=r"^Item 2: [^\n]*$"):
            asked.predict([item, wrong])


@pytest.mark.parametrize("kind", ["classification", "regression", "multi_label"])
def test_derived_task_takes_texts_and_pairs(tmp_path, kind):
    asked = kbf.load(save(CASES[kind].make(make_backbone()), tmp_path))
    single, pair = asked.predict(["paris is", ["paris is", "the cat"]])
    assert single != pair
    assert asked.predict([{"text": "paris is", "text_pair": "the cat"}]) == asked.predict([("paris is", "the cat")])


def test_stored_task_keeps_its_fields(tmp_path):
    model = CASES["classification"].make(make_backbone())
    task = kbf.make_task("classification", labels=model.labels, text_pair="second")
    folder = save(model, tmp_path)
    model.save_to_preset(folder, task=task, max_tokens=32)
    asked = kbf.load(folder)
    assert (asked.task, asked.sequence_length) == (task, 32)
    with pytest.raises(ValueError, match="Item 1"):
        asked.predict(["alone"])


@pytest.mark.parametrize(("removed", "labels"), [((), None), (("id2label", "problem_type"), ("LABEL_0", "LABEL_1"))])
def test_directory_of_transformers_is_asked(tmp_path, removed, labels):
    folder = save(kbf.TextClassifier(make_backbone(), num_classes=2, labels=["no", "yes"]), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k not in removed}))
    assert kbf.load(folder).predict("paris")[0]["label"] in (labels or ("no", "yes"))


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        (("O", "B-PER", "I-PER"), "IOB2"),
        (("O", "I-PER"), "IOB2"),
        (("O", "B-PER", "I-PER", "E-PER", "S-PER"), "BIOES"),
        (("NOUN", "VERB"), "plain"),
        (("O", "B-PER", "odd"), "plain"),
    ],
)
def test_scheme_of_tags(tags, scheme):
    assert guess_scheme(tags) == scheme


def test_model_without_a_task_is_refused(tmp_path):
    folder = save(kbf.MaskedLM(make_backbone(use_pooler=False)), tmp_path)
    with pytest.raises(FileNotFoundError, match="config.json with the head of a task"):
        kbf.load(folder)
