"""Metrics of predictions against labels, for one run and over several, with counts of errors and shares of classes."""

import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass

import numpy as np
import scipy  # its submodules are loaded when they are used

METRICS = ("accuracy", "f1", "f1_positive", "matthews")  # with one class per example
CORRELATIONS = ("pearson", "spearman")
SET_METRICS = ("f1_micro", "f1_macro", "exact_match")  # with any number of labels per example


def classification_metrics(labels: np.ndarray, predictions: np.ndarray, num_classes: int) -> dict[str, float]:
    """Compute accuracy, F1 and Matthews correlation of predicted classes.

    Args:
        labels: int, (examples,). The true classes.
        predictions: int, (examples,). The predicted classes.
        num_classes: number of classes; ids are from 0 to `num_classes - 1`.
    Returns:
        accuracy: share of correct examples, 0 to 1.
        f1: unweighted (macro) mean of the F1 of the classes that occur in `labels` or `predictions`, as in
            scikit-learn: a class that does not occur has no F1.
        f1_positive: F1 of class 1 (GLUE's F1, for MRPC and QQP); for two classes only.
        matthews: see `matthews`.
    Raises:
        ValueError: the lengths differ, there are no examples, or an id is not a class.
    """
    from sklearn.metrics import f1_score  # half a second, which most commands that import this module do without

    labels, predictions = _as_ids(labels, predictions, num_classes)
    with many_classes() if num_classes > len(labels) / 4 else nullcontext():
        f1 = float(f1_score(labels, predictions, average="macro", zero_division=0))
    metrics = {"accuracy": float(np.mean(labels == predictions)), "f1": f1}
    if num_classes == 2:
        metrics["f1_positive"] = float(f1_score(labels, predictions, labels=[1], average="macro", zero_division=0))
    metrics["matthews"] = matthews(labels, predictions)
    return metrics


@contextmanager
def many_classes() -> Iterator[None]:
    """Silence the warning of scikit-learn that labels with many classes might be numbers; the task says that they are.

    It is one line per fit and per score.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes")
        yield


def matthews(labels: np.ndarray, predictions: np.ndarray, counts: np.ndarray | None = None) -> float:
    """Return the Matthews correlation of classes, -1 to 1; 0.0 if all labels or all predictions are of one class.

    Args:
        counts: how often each pair of label and prediction occurs. Default: once.
    Source: Gorodkin 2004, 10.1016/j.compbiolchem.2004.09.006; equal to `sklearn.metrics.matthews_corrcoef`, which takes
        a matrix of the classes, a hundred times as long for a few examples.
    """
    counts = np.ones(len(labels)) if counts is None else np.asarray(counts, np.float64)
    classes = int(max(labels.max(), predictions.max())) + 1
    golds, guesses = (np.bincount(ids, counts, classes) for ids in (labels, predictions))
    total, correct = counts.sum(), counts[labels == predictions].sum()
    spread = (total**2 - golds @ golds) * (total**2 - guesses @ guesses)
    return float((correct * total - golds @ guesses) / np.sqrt(spread)) if spread > 0 else 0.0


def regression_metrics(labels: np.ndarray, predictions: np.ndarray) -> dict[str, float]:
    """Compute Pearson and Spearman correlation and the mean squared error of predicted numbers.

    Args:
        labels: float, (examples,). The true numbers.
        predictions: float, (examples,). The predicted numbers.
    Returns:
        pearson: correlation, -1 to 1.
        spearman: correlation of the ranks; ties have the mean of their ranks.
        mse: mean squared error.
    Raises:
        ValueError: the lengths differ, there are no examples, or a number is not finite.
    """
    labels, predictions = np.asarray(labels, np.float64), np.asarray(predictions, np.float64)
    _require_pairs(labels, predictions, "one number")
    if not (np.isfinite(labels).all() and np.isfinite(predictions).all()):
        raise ValueError("Numbers must be finite. Received: nan or infinity. Correct the table or lower the rate.")
    # If one side is constant, the formula divides 0 by 0. scipy returns nan, which would make means over seeds nan; 0.0
    # is what such predictions say about the labels.
    constant = np.ptp(labels) == 0 or np.ptp(predictions) == 0
    return {
        "pearson": 0.0 if constant else float(scipy.stats.pearsonr(labels, predictions).statistic),
        "spearman": 0.0 if constant else float(scipy.stats.spearmanr(labels, predictions).statistic),
        "mse": float(np.mean((labels - predictions) ** 2)),
    }


def set_metrics(labels: np.ndarray, predictions: np.ndarray, names: Sequence[str]) -> dict[str, float]:
    """Compute micro and macro F1 and exact match of predicted label sets.

    Args:
        labels: bool, (examples, labels). The true labels.
        predictions: bool, same shape. The predicted labels.
        names: name of each label.
    Returns:
        f1_micro: F1 over all decisions together.
        f1_macro: mean F1 of the labels that occur in `labels` or `predictions`.
        exact_match: share of examples whose whole set is correct.
        f1/NAME: F1 of each label; 0.0 if it does not occur.
    Raises:
        ValueError: the shapes differ, or there are no examples.
    """
    labels, predictions = np.asarray(labels, bool), np.asarray(predictions, bool)
    _require_pairs(labels, predictions, "one decision of each label", dimensions=2)
    agreed = (labels & predictions).sum(axis=0)
    marked = labels.sum(axis=0) + predictions.sum(axis=0)  # F1 = 2 * true positives / (labels + predictions)
    f1 = 2 * agreed / np.maximum(marked, 1)
    occurring = marked > 0
    return {
        "f1_micro": float(2 * agreed.sum() / max(marked.sum(), 1)),
        "f1_macro": float(f1[occurring].mean()) if occurring.any() else 0.0,
        "exact_match": float((labels == predictions).all(axis=1).mean()),
        **{f"f1/{name}": float(value) for name, value in zip(names, f1, strict=True)},
    }


def confusion(labels: np.ndarray, predictions: np.ndarray, num_classes: int) -> np.ndarray:
    """Return the confusion matrix: the number of examples by label and prediction.

    Returns:
        int, (num_classes, num_classes): row = label, column = prediction.
    Raises:
        ValueError: as for `classification_metrics`.
    """
    from sklearn.metrics import confusion_matrix

    labels, predictions = _as_ids(labels, predictions, num_classes)
    return confusion_matrix(labels, predictions, labels=range(num_classes))


def mean_measure(values: Sequence[float] | np.ndarray) -> Callable[[np.ndarray], float]:
    """Return the mean of per-example scores, as a function of the chosen examples."""
    scores = np.asarray(values, dtype=np.float64)
    return lambda chosen: float(scores[chosen].mean())


def has_collapsed(labels: Iterable[Hashable], predictions: Iterable[Hashable]) -> bool:
    """Return whether all predictions are the same though the labels are not."""
    return len(set(predictions)) == 1 and len(set(labels)) > 1


def majority_class(train_label_ids: np.ndarray) -> int:
    """Return the most common class of the training table, the lowest id of ties."""
    if np.size(train_label_ids) == 0:
        raise ValueError("The majority class needs at least one label. Received: none. Read the training table first.")
    return int(np.bincount(train_label_ids).argmax())


def summarise_runs(runs: Sequence[Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Summarise each metric over runs with different seeds.

    Args:
        runs: metric → value, for each run.
    Returns:
        metric → mean, standard_deviation (of the sample, n - 1; 0.0 for one run), minimum and maximum.
    """
    if not runs:
        raise ValueError("A summary needs at least one run. Received: none. Give at least one seed.")
    summary = {}
    for name in runs[0]:
        values = [run[name] for run in runs]
        summary[name] = {
            "mean": statistics.fmean(values),
            "standard_deviation": statistics.stdev(values) if len(values) > 1 else 0.0,
            "minimum": min(values),
            "maximum": max(values),
        }
    return summary


def _as_ids(labels: np.ndarray, predictions: np.ndarray, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    _require_pairs(labels, predictions, "one class")
    for name, ids in (("labels", labels), ("predictions", predictions)):
        if not np.issubdtype(ids.dtype, np.integer) or ids.min() < 0 or ids.max() >= num_classes:
            raise ValueError(
                f"`{name}` must be class ids, integers from 0 to {num_classes - 1}. "
                f"Received: {ids.dtype} from {ids.min()} to {ids.max()}. Take the argmax of the probabilities."
            )
    return labels, predictions


def _require_pairs(labels: np.ndarray, predictions: np.ndarray, what: str, dimensions: int = 1) -> None:
    if labels.ndim != dimensions or labels.shape != predictions.shape or labels.size == 0:
        raise ValueError(
            f"`labels` and `predictions` must have {what} for each example. "
            f"Received: shapes {labels.shape} and {predictions.shape}. Predict every example of the table once."
        )


# Count gold, predicted and correct items, and compute precision, recall and F1 of each class.

COUNTED = ("gold", "predicted", "correct")
Table = Mapping[str, Mapping[str, float | int]]  # class → precision, recall, f1, gold, predicted, correct


@dataclass(frozen=True)
class Counts:
    """Numbers of gold items, predicted items, and items in both: examples of a class, labels, or spans of a type."""

    gold: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """Return the share of predicted items that are correct; 0.0 if there are none."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Return the share of gold items that were predicted; 0.0 if there are none."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Return the harmonic mean of precision and recall; 0.0 if both are 0."""
        return 2 * self.correct / (self.gold + self.predicted) if self.correct else 0.0


def count_classes(labels: np.ndarray, predictions: np.ndarray, num_classes: int) -> list[Counts]:
    """Count the examples of each class.

    Args:
        labels: int, (examples,). The class of each example.
        predictions: int, (examples,). The predicted classes.
    """
    columns = (labels, predictions, labels[labels == predictions])
    return [*map(Counts, *(np.bincount(column, minlength=num_classes).tolist() for column in columns))]


def make_table(names: Iterable[str], counts: Iterable[Counts]) -> dict[str, dict[str, float | int]]:
    """Return name → precision, recall and f1, and the counts gold, predicted and correct."""
    return {
        name: {"precision": one.precision, "recall": one.recall, "f1": one.f1, **asdict(one)}
        for name, one in zip(names, counts, strict=True)
    }


def pool_tables(tables: Sequence[Table]) -> dict[str, dict[str, float | int]]:
    """Sum the counts of several tables, and compute precision, recall and F1 from the sums."""
    names = dict.fromkeys(name for table in tables for name in table)
    sums = {
        name: Counts(*(sum(int(table[name][field]) for table in tables if name in table) for field in COUNTED))
        for name in names
    }
    return make_table(sums, sums.values())


# Compare the shares of classes in two files of a task.

LEAST_DIFFERENCE = 0.05  # of a share
STANDARD_ERRORS = 4  # one class in 16,000 differs as much by chance
SHOWN = 3


def describe_shares(name: str, training: Sequence[str], others: Sequence[str]) -> str:
    """Return one line about classes whose shares in a file are not those of the training file, or "".

    Scores on such a file are not those on texts like the training file's, and a classifier that has learnt the shares
    of one predicts the classes of the other too often or too rarely.

    Args:
        name: of the file, as in `dev`.
        training, others: names of classes, one for each label.
    """
    if not training or not others:
        return ""
    first, second = Counter(training), Counter(others)
    differing = []
    for label in first.keys() | second.keys():
        shares = first[label] / len(training), second[label] / len(others)
        common = (first[label] + second[label]) / (len(training) + len(others))
        error = (common * (1 - common) * (1 / len(training) + 1 / len(others))) ** 0.5
        difference = abs(shares[0] - shares[1])
        if difference > max(LEAST_DIFFERENCE, STANDARD_ERRORS * error):
            differing.append((difference, label, shares))
    if not differing:
        return ""
    shown = sorted(differing, key=lambda item: (-item[0], item[1]))[:SHOWN]
    parts = [f"{ascii(label)} {100 * here:.0f} % for {100 * there:.0f} %" for _, label, (there, here) in shown]
    more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    return (
        f"{name}: the shares of classes are not those of the training file: {', '.join(parts)} there{more}. Scores on "
        "it are of another mix of classes."
    )
