"""Numbers of thousands are learnt as standardised ones are, and what is published predicts thousands."""

from dataclasses import replace

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.tasks.core.task import Features
from keras_bert_flow.training.finetuning.starts import LabelUnits, find_units
from keras_bert_flow.training.finetuning.task_data import TaskData
from keras_bert_flow.training.finetuning.task_runs import PRETRAINED, TaskRuns
from tests.tasks.kinds import TOKENIZER, make_case
from tests.training.finetune_cases import LENGTH, SETTINGS, write_tiny_model

ROWS = 16


def features_of(*numbers):
    labels = {"logits": np.array(numbers, np.float32)}
    return Features(
        [np.zeros(2, np.int32)] * len(numbers), np.ones(len(numbers), np.int32), np.arange(len(numbers)), labels
    )


@pytest.mark.parametrize(
    ("numbers", "is_standardised"),
    [
        ((0, 2.5, 5), False),  # STS-B
        ((1, 10), False),
        ((-1, 1), False),
        ((1000, 2000), True),
        ((0, 100), True),
        ((1e-4, 3e-4), True),
        ((5e8, 5e8), False),  # all the same
    ],
)
def test_only_scales_far_from_ordinary_ones_are_standardised(numbers, is_standardised):
    features = features_of(*numbers)
    units = find_units("regression", features)
    assert (units is not None) == is_standardised
    assert find_units("classification", features) is None
    if units is not None:
        labels = units.standardise(features).labels["logits"]
        assert labels.dtype == np.float32
        np.testing.assert_allclose([labels.mean(), labels.std()], [0, 1], atol=1e-4)
        np.testing.assert_allclose(units.restore({"logits": labels})["logits"], numbers, rtol=1e-5)


def run(model, folder, case):
    table = str(model / "config.json")  # as good as any: examples are drawn, not read
    values = {"task": {"kind": "regression", "train": table, "dev": table}, "finetuning": SETTINGS | {"epochs": 1}}
    config = make_config(PipelineConfig, values, "task")
    train, dev = (case.task.encode(TOKENIZER, examples, LENGTH) for examples in (case.training, case.dev))
    runs = TaskRuns(config, model, TOKENIZER, TaskData(case.task, train, case.dev, dev), lambda line: None, ())
    runs.finish(folder / "seed-1", PRETRAINED, 1)
    return folder / "seed-1"


def with_labels(case, change):
    """Return the case with single texts and other labels."""
    training, dev = ([replace(e, text_pair=None, label=change(e.label)) for e in t] for t in (case.training, case.dev))
    return replace(case, training=training, dev=dev)


@pytest.mark.any_backend
def test_thousands_are_learnt_and_published_in_their_units(tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    model, case = write_tiny_model(tmp_path), make_case("regression", ROWS)
    thousands = with_labels(case, lambda label: 5000 + 300 * label)
    labels = np.array([example.label for example in thousands.training])
    units = LabelUnits(float(labels.mean()), float(labels.std()))
    expected = run(model, tmp_path / "some", with_labels(thousands, lambda x: (x - units.mean) / units.deviation))
    found = run(model, tmp_path / "others", thousands)
    facts = read_json_object(found / "run.json")
    assert facts["label_units"] == pytest.approx({"mean": units.mean, "deviation": units.deviation})
    assert "label_units" not in read_json_object(expected / "run.json")
    assert facts["score"] == pytest.approx(read_json_object(expected / "run.json")["score"], abs=1e-5)

    texts = [example.text for example in case.dev]
    small, large = (np.array([p["score"] for p in kbf.load(f / "model").predict(texts)]) for f in (expected, found))
    np.testing.assert_allclose(large, small * units.deviation + units.mean, rtol=1e-5)
    assert abs(large.mean() - units.mean) < 3 * units.deviation  # where a head in the table's units says about 0
    tokenizer = transformers.AutoTokenizer.from_pretrained(found / "model")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(found / "model").eval()
    with torch.no_grad():
        encoded = tokenizer(texts, return_tensors="pt", padding=True)
        np.testing.assert_allclose(theirs(**encoded).logits[:, 0].numpy(), large, rtol=1e-4)

    head = kbf.TextRegressor.from_preset(found / "model")
    before = [np.array(v) for v in (head.get_layer("classifier").kernel, head.get_layer("classifier").bias)]
    units.take_from_head(head)
    units.put_into_head(head)
    for then, now in zip(before, (head.get_layer("classifier").kernel, head.get_layer("classifier").bias), strict=True):
        np.testing.assert_allclose(np.array(now), then, rtol=1e-5)
