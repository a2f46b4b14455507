import json

import numpy as np
import pytest

from keras_bert_flow.evaluation.results import RunPredictions, build_results, worst_errors
from keras_bert_flow.evaluation.summary import results_markdown, results_text, verdict
from keras_bert_flow.tasks.tables import TaskTable

TASK = {"name": "colours", "labels": ("blue", "green", "red")}
TRAIN = np.array([1, 1, 2, 0, 1], np.int32)
DEV = np.array([0, 1, 2, 2], np.int32)


def run_of(seed: int, predictions: list[int], num_classes: int = 3, seconds: float = 2.5) -> RunPredictions:
    probabilities = np.full((len(predictions), num_classes), 0.1 / (num_classes - 1), np.float32)
    probabilities[np.arange(len(predictions)), predictions] = 0.9
    return RunPredictions(seed, probabilities, seconds)


def results_of(pretrained, random=None, pretraining=None):
    runs = {"pretrained": [run_of(seed, answers) for seed, answers in enumerate(pretrained, 1)]}
    if random:
        runs["random"] = [run_of(seed, answers) for seed, answers in enumerate(random, 1)]
    return build_results(TASK, runs, TRAIN, DEV, pretraining or {})


def test_results_hold_the_documented_format():
    results = results_of([[0, 1, 2, 2], [0, 1, 2, 1]], [[0, 0, 0, 0], [0, 1, 1, 1]], {"steps": 10})
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    assert list(results) == ["task", "models", "pretraining", "confusion"]
    assert results["task"] == {
        "name": "colours",
        "labels": ["blue", "green", "red"],
        "train_examples": 5,
        "dev_examples": 4,
    }
    assert results["pretraining"] == {"steps": 10}
    models = results["models"]
    assert list(models) == ["majority", "random", "pretrained"]
    for model in models.values():
        assert set(model) == {"accuracy", "f1", "matthews", "runs"}
        assert set(model["accuracy"]) == {"mean", "standard_deviation", "minimum", "maximum"}
        for run in model["runs"]:
            assert set(run) == {"seed", "accuracy", "f1", "matthews", "collapsed", "seconds"}
    assert [(run["seed"], run["accuracy"], run["seconds"]) for run in models["pretrained"]["runs"]] == [
        (1, 1.0, 2.5),
        (2, 0.75, 2.5),
    ]
    assert [run["collapsed"] for run in models["random"]["runs"]] == [True, False]
    assert models["pretrained"]["accuracy"]["mean"] == 0.875


def test_majority_is_the_class_of_the_training_table():
    majority = results_of([[0, 1, 2, 2]])["models"]["majority"]
    assert majority["runs"] == [
        {
            "seed": None,
            "accuracy": 0.25,
            "f1": pytest.approx(0.4 / 3),
            "matthews": 0.0,
            "collapsed": True,
            "seconds": 0.0,
        }
    ]


def test_confusion_sums_the_pretrained_runs_only():
    results = results_of([[0, 1, 2, 1], [0, 0, 2, 2]], [[1, 1, 1, 1]])
    assert results["confusion"] == [[2, 0, 0], [1, 1, 0], [0, 1, 3]]


def test_two_classes_also_have_the_f1_of_class_one():
    runs = {"pretrained": [run_of(1, [0, 1, 0], num_classes=2)]}
    labels = np.array([0, 1, 1])
    results = build_results({"name": "t", "labels": ["a", "b"]}, runs, labels, labels, {})
    assert results["models"]["pretrained"]["f1_positive"]["mean"] == pytest.approx(2 / 3)
    assert "class 1 F1 %" in results_text(results)


def with_row(values: list[float]) -> dict:
    run = run_of(7, [0, 1, 2, 2])
    run.probabilities[1] = values
    return {"pretrained": [run]}


@pytest.mark.parametrize(
    ("runs", "parts"),
    [
        ({}, ["`pretrained`", "nothing"]),
        ({"pretrained": []}, ["pretrained (0 runs)"]),
        ({"random": [run_of(1, [0, 1, 2, 2])]}, ["random (1 runs)"]),
        ({"pretrained": [run_of(1, [0, 1, 2, 2])], "scratch": []}, ["scratch (0 runs)"]),
        ({"pretrained": [run_of(7, [0, 1, 2])]}, ["pretrained, seed 7", "(3, 3), not (4, 3)"]),
        ({"pretrained": [run_of(7, [0, 1, 2, 2], num_classes=4)]}, ["(4, 4), not (4, 3)"]),
        (with_row([np.nan, 0.5, 0.5]), ["seed 7", "diverged", "learning_rate"]),
        (with_row([2.0, -1.0, 0.0]), ["seed 7", "sum to 1"]),
        (with_row([5.0, 3.0, 1.0]), ["seed 7", "softmax"]),
    ],
)
def test_build_results_refuses(runs, parts):
    with pytest.raises(ValueError, match="Received: ") as caught:
        build_results(TASK, runs, TRAIN, DEV, {})
    assert [part for part in parts if part not in str(caught.value)] == []


def test_worst_errors_are_the_surest_first():
    table = TaskTable("dev.tsv", ("t0", "t1", "t2", "t3"), ("p0", "p1", "p2", "p3"), ("blue", "green", "red", "red"))
    probabilities = np.array([[0.2, 0.7, 0.1], [0.0, 1.0, 0.0], [0.9, 0.1, 0.0], [0.7, 0.2, 0.1]])
    errors = worst_errors(table, DEV, probabilities, TASK["labels"], limit=2)
    assert errors == [
        {"text": "t2", "text_pair": "p2", "gold": "red", "predicted": "blue", "probability": 0.9},
        {"text": "t0", "text_pair": "p0", "gold": "blue", "predicted": "green", "probability": 0.7},
    ]
    single = TaskTable("dev.tsv", table.texts, None, table.labels)
    assert "text_pair" not in worst_errors(single, DEV, probabilities, TASK["labels"])[0]
    assert worst_errors(single, DEV, np.eye(3)[DEV], TASK["labels"]) == []


def test_text_and_markdown_hold_one_table():
    results = results_of([[0, 1, 2, 2], [0, 1, 2, 1]], [[0, 0, 0, 0], [0, 1, 1, 1]])
    markdown, text = results_markdown(results).splitlines(), results_text(results).splitlines()
    assert text[0].split() == ["model", "accuracy", "%", "macro", "F1", "%", "Matthews", "runs"]
    assert markdown[1] == "| --- | ---: | ---: | ---: | ---: |"
    del markdown[1]
    assert [[*map(str.strip, line.strip("|").split("|"))] for line in markdown] == [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in text
    ]
    assert markdown[1].startswith("| majority class | 25.0 |") and markdown[1].endswith("| - |")
    assert markdown[2].startswith("| random weights | 37.5 ± 17.7 |") and markdown[2].endswith("| 2 (1 collapsed) |")
    assert markdown[3].startswith("| pre-trained | 87.5 ± 17.7 |") and markdown[3].endswith("| 2 |")


@pytest.mark.parametrize(
    ("pretrained", "random", "parts"),
    [
        ([[0, 1, 2, 2]], None, ["On colours", "100.0%, 75.0 points over", "(25.0%)", "not compared"]),
        ([[1, 2, 0, 0]], None, ["0.0%, 25.0 points under the majority class"]),
        (
            [[0, 1, 2, 2], [0, 1, 2, 1]],
            [[0, 0, 0, 0], [0, 1, 1, 1]],
            ["gained 50.0 points of accuracy on colours", "87.5 ± 17.7%", "37.5 ± 17.7% from random", "do not overlap"],
        ),
        ([[0, 1, 2, 2], [0, 1, 1, 1]], [[0, 1, 1, 2]] * 2, ["gained 0.0 points", "runs overlap", "chance"]),
        ([[0, 0, 0, 0]], [[0, 1, 2, 2]], ["lost 75.0 points", "single run"]),
    ],
)
def test_verdict_says_what_pretraining_bought(pretrained, random, parts):
    sentence = verdict(results_of(pretrained, random))
    assert [part for part in parts if part not in sentence] == [], sentence
    assert sentence.count(". ") == 0 and sentence.endswith(".")
