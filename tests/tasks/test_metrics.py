import math
import warnings

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from keras_bert_flow.tasks.core.metrics import (
    classification_metrics,
    confusion,
    has_collapsed,
    majority_class,
    regression_metrics,
    set_metrics,
    summarise_runs,
)

some_and_many = pytest.mark.parametrize("cases", [200, pytest.param(1000, marks=pytest.mark.slow)])


def expected_metrics(labels: list[int], predictions: list[int], num_classes: int) -> dict:
    """Compute the metrics by their formulas, from counts of pairs alone."""
    table = [[0] * num_classes for _ in range(num_classes)]
    for label, prediction in zip(labels, predictions, strict=True):
        table[label][prediction] += 1
    total = len(labels)
    right = sum(table[c][c] for c in range(num_classes))
    gold = [sum(row) for row in table]
    answered = [sum(row[c] for row in table) for c in range(num_classes)]
    f1 = [2 * table[c][c] / (gold[c] + answered[c]) if gold[c] + answered[c] else None for c in range(num_classes)]
    occurring = [value for value in f1 if value is not None]
    # Gorodkin 2004, the multi-class correlation R_K.
    covariance = right * total - sum(g * a for g, a in zip(gold, answered, strict=True))
    spread = (total**2 - sum(a * a for a in answered)) * (total**2 - sum(g * g for g in gold))
    return {
        "accuracy": right / total,
        "f1": sum(occurring) / len(occurring),
        "f1_positive": f1[1] or 0.0,
        "matthews": covariance / math.sqrt(spread) if spread else 0.0,
        "collapsed": sum(map(bool, answered)) == 1 and sum(map(bool, gold)) > 1,
        "table": table,
    }


def scikit_learn_metrics(labels, predictions, num_classes: int) -> dict[str, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of classes that do not occur
        metrics = {
            "accuracy": sklearn_metrics.accuracy_score(labels, predictions),
            "f1": sklearn_metrics.f1_score(labels, predictions, average="macro"),
            "matthews": sklearn_metrics.matthews_corrcoef(labels, predictions),
        }
        if num_classes == 2:
            metrics["f1_positive"] = sklearn_metrics.f1_score(labels, predictions, zero_division=0)
    return metrics


@some_and_many
def test_metrics_equal_their_formulas_and_scikit_learn(cases):
    rng = np.random.default_rng(7)
    collapsed = 0
    for case in range(cases):
        num_classes = int(rng.integers(2, 7))
        count = int(rng.integers(1, 40))
        used = rng.integers(1, num_classes + 1, size=2)  # often leaves classes out, of labels or predictions
        labels, predictions = (rng.integers(0, most, size=count) for most in used)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            metrics = classification_metrics(labels, predictions, num_classes)
            table = confusion(labels, predictions, num_classes)
        expected = expected_metrics(labels.tolist(), predictions.tolist(), num_classes)
        assert table.tolist() == expected.pop("table")
        assert has_collapsed(labels, predictions) == expected["collapsed"]
        collapsed += expected.pop("collapsed")
        if num_classes > 2:
            del expected["f1_positive"]
        assert metrics == pytest.approx(expected, abs=1e-12)
        if case % 10 == 0:  # it is what computes them: see that it was asked for what the formulas say
            given = scikit_learn_metrics(labels, predictions, num_classes)
            assert {name: metrics[name] for name in given} == pytest.approx(given, abs=1e-12)
    assert 0.05 * cases < collapsed < 0.5 * cases


@some_and_many
def test_regression_metrics_equal_those_of_scipy_and_scikit_learn(cases):
    rng = np.random.default_rng(9)
    constant = 0
    for case in range(cases):
        count = int(rng.integers(1, 40))
        draw = rng.normal if case % 2 else lambda size: rng.integers(0, 3, size).astype(np.float64)  # many ties
        labels, predictions = draw(size=count), draw(size=count) * 10.0 ** rng.integers(-3, 4)
        if case % 10 == 0:
            labels[:] = labels[0]
        if case % 15 == 0:
            predictions[:] = predictions[0]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            metrics = regression_metrics(labels, predictions)
        if np.unique(labels).size == 1 or np.unique(predictions).size == 1:
            expected = {"pearson": 0.0, "spearman": 0.0}
            constant += 1
        else:
            pearson, spearman = stats.pearsonr(labels, predictions), stats.spearmanr(labels, predictions)
            expected = {"pearson": pearson.statistic, "spearman": spearman.statistic}
            ranks = [stats.rankdata(values) for values in (labels, predictions)]
            assert metrics["spearman"] == pytest.approx(np.corrcoef(*ranks)[0, 1], abs=1e-12)
            assert metrics["pearson"] == pytest.approx(np.corrcoef(labels, predictions)[0, 1], abs=1e-12)
        expected["mse"] = sklearn_metrics.mean_squared_error(labels, predictions)
        assert metrics == pytest.approx(expected, rel=1e-12, abs=1e-12)
        assert {type(value) for value in metrics.values()} == {float}
    assert 0.1 * cases < constant < 0.5 * cases


@some_and_many
def test_set_metrics_equal_those_of_scikit_learn(cases):
    rng = np.random.default_rng(10)
    absent = 0
    for _ in range(cases):
        count, num_labels = int(rng.integers(1, 25)), int(rng.integers(1, 6))
        rates = rng.choice([0.0, 0.1, 0.5, 1.0], size=(2, num_labels))  # often no label, or every one
        labels, predictions = (rng.random((count, num_labels)) < rate for rate in rates)
        names = [f"n{number}" for number in range(num_labels)]
        metrics = set_metrics(labels, predictions, names)
        # A column that is always false makes scikit-learn see sets also where there is one label.
        wide = [np.pad(values, ((0, 0), (0, 1))).astype(int) for values in (labels, predictions)]
        each = sklearn_metrics.f1_score(*wide, average=None, zero_division=0)[:-1]
        occurring = np.flatnonzero(labels.any(axis=0) | predictions.any(axis=0))
        expected = {
            "f1_micro": sklearn_metrics.f1_score(*wide, average="micro", zero_division=0),
            "f1_macro": each[occurring].mean() if occurring.size else 0.0,
            "exact_match": sklearn_metrics.accuracy_score(*wide),
            **{f"f1/{name}": value for name, value in zip(names, each, strict=True)},
        }
        assert metrics == pytest.approx(expected, abs=1e-12)
        assert {type(value) for value in metrics.values()} == {float}
        absent += occurring.size < num_labels
    assert 0.05 * cases < absent < 0.5 * cases


@pytest.mark.parametrize(
    ("call", "part"),
    [
        (lambda: regression_metrics(np.zeros(2), np.zeros(3)), "shapes (2,) and (3,)"),
        (lambda: regression_metrics(np.zeros((2, 1)), np.zeros((2, 1))), "shapes (2, 1)"),
        (lambda: regression_metrics(np.zeros(0), np.zeros(0)), "shapes (0,)"),
        (lambda: regression_metrics(np.array([0, np.nan]), np.zeros(2)), "nan"),
        (lambda: regression_metrics(np.zeros(2), np.array([0, np.inf])), "infinity"),
        (lambda: set_metrics(np.zeros((2, 3)), np.zeros((3, 3)), "abc"), "shapes (2, 3) and (3, 3)"),
        (lambda: set_metrics(np.zeros((0, 3)), np.zeros((0, 3)), "abc"), "shapes (0, 3)"),
    ],
)
def test_metrics_of_numbers_and_sets_refuse(call, part):
    with pytest.raises(ValueError, match="Received: ") as caught:
        call()
    assert part in str(caught.value)


def test_metrics_of_a_hand_counted_case():
    metrics = classification_metrics(np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 0]), 2)
    expected = {"accuracy": 0.6, "f1": (2 / 3 + 1 / 2) / 2, "f1_positive": 0.5, "matthews": 1 / 6}
    assert metrics == pytest.approx(expected)


def test_metrics_are_plain_values_that_json_takes():
    metrics = classification_metrics(np.array([0, 1], np.int32), np.array([1, 1]), 2)
    names = ("accuracy", "f1", "f1_positive", "matthews")
    assert {name: type(value) for name, value in metrics.items()} == dict.fromkeys(names, float)


def test_collapsed_needs_labels_that_differ():
    assert has_collapsed("ab", "bb")
    assert not has_collapsed("bb", "bb") and not has_collapsed("ab", "ab")


@pytest.mark.parametrize(
    ("labels", "predictions", "part"),
    [
        ([0, 1], [0], "shapes (2,) and (1,)"),
        ([], [], "shapes (0,) and (0,)"),
        ([[0, 1]], [[0, 1]], "shapes (1, 2)"),
        ([0, 2], [0, 1], "`labels`"),
        ([0, 1], [0, -1], "`predictions`"),
        ([0, 1], [0.0, 1.0], "float64"),
    ],
)
@pytest.mark.parametrize("measure", [classification_metrics, confusion])
def test_metrics_refuse(measure, labels, predictions, part):
    with pytest.raises(ValueError, match="Received: ") as caught:
        measure(np.array(labels), np.array(predictions), 2)
    assert part in str(caught.value)


@pytest.mark.parametrize(("ids", "majority"), [([2, 0, 2, 1], 2), ([1, 0, 0, 1, 2], 0), ([3], 3)])
def test_majority_class_is_the_commonest_and_lowest(ids, majority):
    assert majority_class(np.array(ids, np.int32)) == majority


def test_summary_has_mean_deviation_and_range_of_each_metric():
    runs = [{"accuracy": share, "matthews": -share} for share in (0.5, 0.7, 0.9)]
    summary = summarise_runs(runs)
    assert list(summary) == ["accuracy", "matthews"]
    expected = {"mean": 0.7, "standard_deviation": 0.2, "minimum": 0.5, "maximum": 0.9}
    assert summary["accuracy"] == pytest.approx(expected)
    assert summary["matthews"]["minimum"] == -0.9
    assert summarise_runs(runs[:1])["accuracy"]["standard_deviation"] == 0.0


@pytest.mark.parametrize("call", [lambda: summarise_runs([]), lambda: majority_class(np.array([], np.int32))])
def test_nothing_has_no_summary(call):
    with pytest.raises(ValueError, match="Received: none"):
        call()
