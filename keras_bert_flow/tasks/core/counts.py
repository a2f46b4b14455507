"""Count gold, predicted and correct items, and compute precision, recall and F1 of each class."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

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
    return _zip_counts(np.bincount(column, minlength=num_classes) for column in columns)


def count_marks(labels: np.ndarray, predictions: np.ndarray) -> list[Counts]:
    """Count the examples with each label; both arguments are bool, (examples, labels)."""
    return _zip_counts(marks.sum(axis=0) for marks in (labels, predictions, labels & predictions))


def macro_f1(counts: Iterable[Counts]) -> float:
    """Return the mean F1 of the classes that occur in labels or predictions; 0.0 if none does."""
    scores = [one.f1 for one in counts if one.gold or one.predicted]
    return sum(scores) / len(scores) if scores else 0.0


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


def _zip_counts(columns: Iterable[np.ndarray]) -> list[Counts]:
    return [Counts(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
