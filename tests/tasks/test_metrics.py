import math
import warnings

import numpy as np
import pytest

from keras_bert_flow.tasks.metrics import classification_metrics, confusion, majority_class, summarise_runs


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


def test_metrics_equal_their_formulas():
    rng = np.random.default_rng(7)
    collapsed = 0
    for _ in range(1000):
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
        if num_classes > 2:
            del expected["f1_positive"]
        assert metrics == pytest.approx(expected, abs=1e-12)
        collapsed += metrics["collapsed"]
    assert 50 < collapsed < 500


def test_metrics_of_a_hand_counted_case():
    metrics = classification_metrics(np.array([0, 0, 0, 1, 1]), np.array([0, 0, 1, 1, 0]), 2)
    expected = {"accuracy": 0.6, "f1": (2 / 3 + 1 / 2) / 2, "f1_positive": 0.5, "matthews": 1 / 6, "collapsed": False}
    assert metrics == pytest.approx(expected)


def test_metrics_are_plain_values_that_json_takes():
    metrics = classification_metrics(np.array([0, 1], np.int32), np.array([1, 1]), 2)
    assert {name: type(value) for name, value in metrics.items()} == {
        **dict.fromkeys(("accuracy", "f1", "f1_positive", "matthews"), float),
        "collapsed": bool,
    }


def test_collapsed_needs_labels_that_differ():
    assert classification_metrics(np.array([0, 1]), np.array([1, 1]), 2)["collapsed"]
    assert not classification_metrics(np.array([1, 1]), np.array([1, 1]), 2)["collapsed"]


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
    runs = [{"seed": s, "accuracy": a, "matthews": -a, "collapsed": False} for s, a in ((1, 0.5), (2, 0.7), (3, 0.9))]
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
