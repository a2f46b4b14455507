import json
from dataclasses import replace

import numpy as np
import pytest

from keras_bert_flow.console.terminal import as_markdown
from keras_bert_flow.evaluation.results import RunPredictions, build_results, worst_errors
from keras_bert_flow.evaluation.summary import align, interval_sentence, result_rows, verdict
from keras_bert_flow.tasks.classification import Classification, Regression
from keras_bert_flow.tasks.core.texts import TextExample
from tests.tasks.kinds import CASES, make_case

TASK = Classification(labels=("blue", "green", "red"))
TRAIN = [TextExample("t", None, label) for label in ("green", "green", "red", "blue", "green")]
DEV = [TextExample(f"t{place}", None, label) for place, label in enumerate(("blue", "green", "red", "red"))]


def run_of(seed: int, answers: list[int], labels=TASK.labels, seconds: float = 2.5) -> RunPredictions:
    predictions = [{"label": labels[answer], "probability": 0.9} for answer in answers]
    return RunPredictions(seed, predictions, seconds)


def results_of(pretrained, random=None, pretraining=None, times=1, dev=DEV):
    """Measure runs on a dev table that is repeated so many times."""
    runs = {"pretrained": [run_of(seed, answers * times) for seed, answers in enumerate(pretrained, 1)]}
    if random:
        runs["random"] = [run_of(seed, answers * times) for seed, answers in enumerate(random, 1)]
    return build_results("colours", TASK, TRAIN, dev * times, runs, pretraining or {})


def results_of_kind(name: str, skills=(2.0, 1.5), random_skills=(0.5, 0.0), **fields) -> dict:
    """Measure runs whose models know so much of a small task of a kind."""
    case = make_case(name, **fields)
    runs = {
        model: [RunPredictions(seed, case.answer(skill, seed), 1.0) for seed, skill in enumerate(known, 1)]
        for model, known in (("pretrained", skills), ("random", random_skills))
        if known
    }
    return build_results(f"a {name}", case.task, case.training, case.dev, runs, {})


def test_results_hold_the_documented_format():
    results = results_of([[0, 1, 2, 2], [0, 1, 2, 1]], [[0, 0, 0, 0], [0, 1, 1, 1]], {"steps": 10})
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    compared = ["comparisons", "standard_errors"]
    assert list(results) == ["task", "models", *compared, "pretraining", "interval", "classes", "confusion"]
    assert results["task"] == {
        "name": "colours",
        "kind": "classification",
        "main_metric": "accuracy",
        "baseline": "majority class",
        "labels": ["blue", "green", "red"],
        "train_examples": 5,
        "dev_examples": 4,
    }
    assert results["pretraining"] == {"steps": 10}
    models = results["models"]
    assert list(models) == ["baseline", "random", "pretrained"]
    for model in models.values():
        assert set(model) == {"accuracy", "f1", "matthews", "runs"}
        assert set(model["accuracy"]) == {"mean", "standard_deviation", "minimum", "maximum"}
        for run in model["runs"]:
            assert set(run) == {"seed", "accuracy", "f1", "matthews", "collapsed", "improving", "seconds"}
    assert [(run["seed"], run["accuracy"], run["seconds"]) for run in models["pretrained"]["runs"]] == [
        (1, 1.0, 2.5),
        (2, 0.75, 2.5),
    ]
    assert [run["collapsed"] for run in models["random"]["runs"]] == [True, False]
    assert models["pretrained"]["accuracy"]["mean"] == 0.875


@pytest.mark.parametrize("name", CASES)
@pytest.mark.first_form
def test_results_of_every_kind_have_the_metrics_of_the_task(name):
    results, case = results_of_kind(name), make_case(name)
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    assert ("confusion" in results, results["task"]["kind"]) == (name == "classification", name)
    assert results["task"]["labels"] == list(case.task.labels)
    metrics = set(case.task.score(case.dev, case.answer(2.0, 1)))
    for model in results["models"].values():
        assert set(model) == {*metrics, "runs"}
        assert set(model["runs"][0]) == {*metrics, "seed", "collapsed", "improving", "seconds"}
    main = case.task.main_metric
    expected = [case.task.score(case.dev, case.answer(skill, seed))[main] for seed, skill in ((1, 2.0), (2, 1.5))]
    pretrained = results["models"]["pretrained"]
    assert [run[main] for run in pretrained["runs"]] == expected
    assert pretrained[main]["mean"] == pytest.approx(np.mean(expected))
    assert pretrained[main]["mean"] > results["models"]["random"][main]["mean"]
    guessed = case.task.score(case.dev, case.task.guess(case.training, case.dev))
    (baseline,) = results["models"]["baseline"]["runs"]
    assert baseline[main] == guessed[main] and (baseline["seed"], baseline["seconds"]) == (None, 0.0)
    interval = results["interval"]
    assert (interval["metric"], interval["seed"], interval["value"]) == (main, 1, expected[0])
    assert interval["low"] < interval["value"] < interval["high"]


def test_baseline_of_classes_is_the_majority_of_training():
    baseline = results_of([[0, 1, 2, 2]])["models"]["baseline"]
    expected = {"accuracy": 0.25, "f1": pytest.approx(0.4 / 3), "matthews": 0.0}
    assert baseline["runs"] == [{"seed": None, **expected, "collapsed": True, "improving": None, "seconds": 0.0}]


def test_confusion_and_classes_sum_the_pretrained_runs_only():
    results = results_of([[0, 1, 2, 1], [0, 0, 2, 2]], [[1, 1, 1, 1]])
    assert results["confusion"] == [[2, 0, 0], [1, 1, 0], [0, 1, 3]]
    columns = ("gold", "predicted", "correct", "precision", "recall")
    assert {name: tuple(row[column] for column in columns) for name, row in results["classes"].items()} == {
        "blue": (2, 3, 2, 2 / 3, 1.0),
        "green": (2, 2, 1, 0.5, 0.5),
        "red": (4, 3, 3, 1.0, 0.75),
    }


def test_two_classes_also_have_the_f1_of_class_one():
    task, labels = Classification(labels=("a", "b")), ("a", "b", "b")
    examples = [TextExample("t", None, label) for label in labels]
    runs = {"pretrained": [run_of(1, [0, 1, 0], task.labels)]}
    results = build_results("t", task, examples, examples, runs, {})
    assert results["models"]["pretrained"]["f1_positive"]["mean"] == pytest.approx(2 / 3)
    assert "class 1 F1 %" in align(result_rows(results))


@pytest.mark.parametrize(
    ("runs", "parts"),
    [
        ({}, ["`pretrained`", "nothing"]),
        ({"pretrained": []}, ["pretrained (0 runs)"]),
        ({"random": [run_of(1, [0, 1, 2, 2])]}, ["random (1 runs)"]),
        ({"pretrained": [run_of(1, [0, 1, 2, 2])], "scratch": []}, ["scratch (0 runs)"]),
        ({"pretrained": [run_of(7, [0, 1, 2])]}, ["pretrained, seed 7", "3 for 4 examples"]),
    ],
)
def test_build_results_refuses(runs, parts):
    with pytest.raises(ValueError, match="Received: ") as caught:
        build_results("colours", TASK, TRAIN, DEV, runs, {})
    assert [part for part in parts if part not in str(caught.value)] == []


def test_worst_errors_are_the_surest_first(monkeypatch):
    monkeypatch.setattr("keras_bert_flow.evaluation.results.MOST_ERRORS", 2)
    answers = [("green", 0.7), ("green", 1.0), ("blue", 0.9), ("blue", 0.7)]
    predictions = [{"label": label, "probability": probability} for label, probability in answers]
    pairs = [replace(example, text_pair=f"p{place}") for place, example in enumerate(DEV)]
    assert worst_errors(TASK, pairs, predictions) == [
        {"text": "t2", "text_pair": "p2", "gold": "red", "predicted": "blue", "probability": 0.9},
        {"text": "t0", "text_pair": "p0", "gold": "blue", "predicted": "green", "probability": 0.7},
    ]
    assert worst_errors(TASK, DEV, [{"label": example.label} for example in DEV]) == []


def test_worst_numbers_are_the_farthest_off_first():
    examples = [TextExample(f"t{score}", None, score) for score in (1.0, 2.0, 3.0)]
    errors = worst_errors(Regression(), examples, [{"score": score} for score in (1.5, 2.0, 0.0)])
    assert [(error["text"], error["distance"]) for error in errors] == [("t3.0", 3.0), ("t1.0", 0.5)]


def test_text_and_markdown_hold_one_table():
    results = results_of([[0, 1, 2, 2], [0, 1, 2, 1]], [[0, 0, 0, 0], [0, 1, 1, 1]])
    markdown, text = as_markdown(result_rows(results)).splitlines(), align(result_rows(results)).splitlines()
    assert text[0].split() == ["model", "accuracy", "%", "macro", "F1", "%", "Matthews", "correlation", "runs"]
    assert markdown[1] == "| --- | ---: | ---: | ---: | ---: |"
    del markdown[1]
    assert [[*map(str.strip, line.strip("|").split("|"))] for line in markdown] == [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in text
    ]
    assert markdown[1].startswith("| majority class | 25.0 |") and markdown[1].endswith("| 0.000 | - |")
    assert markdown[2].startswith("| random weights | 37.5 ± 17.7 |") and markdown[2].endswith("| 2 (1 collapsed) |")
    assert markdown[3].startswith("| pre-trained | 87.5 ± 17.7 |") and markdown[3].endswith("| 2 |")


@pytest.mark.parametrize(
    ("name", "columns", "baseline"),
    [
        ("regression", ["Spearman correlation", "Pearson correlation", "mean squared error"], "mean of the training"),
        ("multi_label", ["micro F1 %", "macro F1 %", "exact match %"], "commonest labels"),
        ("multiple_choice", ["accuracy %"], "commonest place"),
        ("sentence_embedding", ["MRR@10", "partner found first %"], "same vector"),
        ("scored_pairs", ["Spearman correlation", "Pearson correlation"], "same vector"),
        (
            "token_classification",
            ["span F1 %", "span precision %", "span recall %", "accuracy of words %"],
            "commonest tag",
        ),
        ("question_answering", ["F1 of words %", "exact match %"], "commonest place of an answer"),
        (
            "maybe_no_answer",
            ["F1 of words %", "exact match %", "F1, answerable %", "F1, unanswerable %"],
            "commonest place of an answer",
        ),
    ],
)
@pytest.mark.first_form
def test_table_of_every_kind_begins_with_the_main_metric(name, columns, baseline):
    results = results_of_kind(name)
    lines = [[*map(str.strip, line.strip("|").split("|"))] for line in as_markdown(result_rows(results)).splitlines()]
    assert lines[0] == ["model", *columns, "runs"]
    assert [line[0] for line in lines[3:]] == ["random weights", "pre-trained"]
    assert lines[2][0].startswith(baseline) and baseline in verdict(results)
    mean = results["models"]["pretrained"][results["task"]["main_metric"]]["mean"]
    assert lines[4][1].startswith(f"{100 * mean:.1f} ± " if columns[0].endswith("%") else f"{mean:.3f} ± 0.")


@pytest.mark.parametrize(
    ("pretrained", "random", "parts"),
    [
        (
            [[0, 1, 2, 2]],
            None,
            [
                "By accuracy on colours, the pre-trained model reaches 100.0%",
                "it beats the majority class (25.0%) by 75.0 ± ",
                "random weights were not compared",
                "a single run shows no spread over seeds; ± is one standard error over dev examples.",
            ],
        ),
        (
            [[1, 2, 0, 0]],
            None,
            ["reaches 0.0%", "chance explains its difference from the majority class (25.0%; -25.0"],
        ),
        (
            [[0, 1, 2, 2], [0, 1, 2, 1]],
            [[0, 0, 0, 0], [0, 1, 1, 1]],
            [
                "reaches 87.5%; it beats the majority class (25.0%) by 62.5 ± ",
                "points beyond chance; chance explains its difference from random weights (37.5%; +50.0 ± ",
                "; ± is one standard error over dev examples and seeds.",
            ],
        ),
        (
            [[0, 1, 2, 2]] * 2,
            [[0, 0, 0, 0]] * 2,
            ["it beats the majority class (25.0%) by 75.0 ± ", " points and random weights (25.0%) by 75.0 ± "],
        ),
        ([[0, 1, 2, 2], [0, 1, 1, 1]], [[0, 1, 1, 2]] * 2, [" points) and random weights (75.0%; +0.0 ± "]),
        ([[0, 0, 0, 0]], [[0, 1, 2, 2]], ["it is beaten by random weights (100.0%) by 75.0 ± ", "beyond chance"]),
    ],
)
def test_verdict_says_which_rows_are_beaten(pretrained, random, parts):
    sentence = verdict(results_of(pretrained, random, times=3))
    assert [part for part in parts if part not in sentence] == [], sentence
    assert sentence.count(". ") == 0 and sentence.endswith(".")
    assert ("single run" in sentence) == (len(pretrained) == 1)


@pytest.mark.parametrize(
    ("count", "said"),
    [
        (1, "one dev example is too few to tell chance from its difference from the majority class (0.0%; +100.0 p"),
        (3, "3 dev examples are too few to tell chance from its difference from the majority class (0.0%; +100.0 p"),
        (5, "5 dev examples are too few to tell"),
        (6, "it beats the majority class (0.0%) by 100.0 ± 0.0 points beyond chance"),
    ],
)
def test_verdict_needs_enough_examples(count, said):
    """With all differences equal the bootstrap has no error; signs of fewer than six agree by chance too often."""
    results = results_of([[2]], times=count, dev=DEV[2:3])
    assert said in verdict(results) and ("±" in verdict(results)) == (count == 6)
    assert ("beyond chance" in verdict(results)) == (count == 6)
    assert interval_sentence(results) == ""


def test_verdict_compares_by_the_main_metric_in_its_own_unit():
    sentence = verdict(results_of_kind("classification", main_metric="matthews"))
    assert sentence.startswith("By Matthews correlation on a classification, ")
    assert "%" not in sentence and "points" not in sentence and "the majority class (0.000)" in sentence
    assert verdict(results_of_kind("regression", random_skills=())).startswith("By Spearman correlation on a regr")


@pytest.mark.slow
def test_interval_is_said_with_its_run_and_resamples():
    sentence = interval_sentence(results_of([[0, 1, 2, 1], [0, 1, 2, 2]], times=2))
    assert "accuracy of the run with seed 1" in sentence and "(95% bootstrap interval, 1,000 resamples)" in sentence
    assert "between 49.7% and 100.0%" in sentence
    assert "%" not in interval_sentence(results_of_kind("regression")).replace("95%", "")
    assert interval_sentence(results_of([[0, 1, 2, 2]], times=2)) == ""  # all right in every draw, which bounds nothing
