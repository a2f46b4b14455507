"""Multi-label classification: any number of labels, or none, for a text or a pair of texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import scipy  # its submodules are loaded when they are used

from keras_bert_flow.tasks.core.metrics import SET_METRICS, Counts, make_table, set_metrics
from keras_bert_flow.tasks.core.task import Features, Measure, Prediction
from keras_bert_flow.tasks.core.texts import (
    TextExample,
    TextTask,
    are_labelled,
    check_labels,
    check_main_metric,
    encode_examples,
    labels_of,
    logits_of,
    read_examples,
    require_learnt,
)
from keras_bert_flow.tasks.formats.rows import abridge, spell_label
from keras_bert_flow.tasks.formats.tables import number_labels, require_text, sort_names
from keras_bert_flow.tasks.settings import MultiLabelSettings
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

# As written by spreadsheets, JSON and data frames.
MARKS = {"0": False, "0.0": False, "false": False, "1": True, "1.0": True, "true": True}


@final
@dataclass(frozen=True)
class MultiLabel(MultiLabelSettings, TextTask):
    """Multi-label text classification, from a table as read by `tables.read_table`.

    The labels are in one column, joined by `separator` (in .jsonl and .parquet also as a list), or each has a column
    of 0 and 1. An example without labels has an empty column, an empty list, or only 0.
    The model returns {"logits": (rows, labels)}. A prediction is {"labels", "probabilities"}, the latter by label name.
    `score` returns `metrics.set_metrics`.

    Attributes:
        text, text_pair: columns; numbers from 0 if there is no header.
        label: column of the labels; ignored if there are `label_columns`.
        separator: separates two labels. Default: a bar, since commas occur in names, and separate the columns of a
            .csv.
        label_columns: one column per label, with the name of the label.
        threshold: labels of at least this probability are predicted.
        header: the first line of a .tsv or .csv names the columns.
        main_metric: f1_micro, f1_macro or exact_match.
        labels: the labels. If given rather than learnt, the training table may have no others.
    """

    baseline: ClassVar[str] = "commonest labels"
    headings: ClassVar[Mapping[str, str]] = {
        "f1_micro": "micro F1 %",
        "f1_macro": "macro F1 %",
        "exact_match": "exact match %",
    }
    word_baseline: ClassVar[str | None] = "TF-IDF with logistic regression"
    answer: ClassVar[str] = "labels"
    class_name: ClassVar[str] = "label"
    architecture: ClassVar[str | None] = "ForSequenceClassification"
    problem_type: ClassVar[str | None] = "multi_label_classification"
    has_classes: ClassVar[bool] = True

    def __post_init__(self):
        check_main_metric(self.main_metric, SET_METRICS)
        check_labels(self.labels, least=1)
        if self.labels and self.label_columns and self.labels != self.label_columns:
            raise ValueError(
                f"`labels` must be the `label_columns`. Received: {abridge(self.labels)} and "
                f"{abridge(self.label_columns)}. Leave `labels` out."
            )
        if not 0 < self.threshold < 1:
            raise ValueError(f"`threshold` must be between 0 and 1. Received: {self.threshold}. Try 0.5.")
        if not self.separator:
            raise ValueError("`separator` must be at least one character. Received: none. Try '|'.")

    def read(self, path: str | Path, max_examples: int | None = None, has_labels: bool = True) -> list[TextExample]:
        columns = (self.label_columns or (self.label,)) if has_labels else ()
        shown = (self.text, self.text_pair)
        return read_examples(path, shown, columns, self.header, max_examples, self._read_labels, not has_labels)

    def learn(self, examples: Sequence[TextExample]) -> "MultiLabel":
        sets = labels_of(examples)
        if self.labels:
            self._mark(examples)
            return self
        labels = self.label_columns or sort_names(name for names in sets for name in names)
        if not labels:
            raise ValueError(
                "A training table must have at least one label. "
                f"Received: {len(examples)} examples from {examples[0].place}, all without. Check the label column."
            )
        return replace(self, labels=labels)

    def encode(self, tokenizer: Tokenizer, examples: Sequence[TextExample], sequence_length: int) -> Features:
        labels = {"logits": self._mark(examples).astype(np.float32)} if are_labelled(examples) else {}
        return encode_examples(tokenizer, examples, sequence_length, labels)

    def decode(
        self, outputs: Mapping[str, Any], features: Features, examples: Sequence[TextExample]
    ) -> list[Prediction]:
        require_learnt(self.labels)
        probabilities = scipy.special.expit(logits_of(outputs, features, len(self.labels)))
        return [self._predict(row, row >= self.threshold) for row in probabilities]

    def score(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        return set_metrics(*self._pair_marks(examples, predictions), self.labels)

    def guess(self, training: Sequence[TextExample], examples: Sequence[TextExample]) -> list[Prediction]:
        """Predict the most common labels of training, as many as an example has there on average, but at least one."""
        labels_of(training)
        marks = self._mark(training)
        shares = marks.mean(axis=0)
        chosen = np.zeros(len(self.labels), dtype=bool)
        chosen[np.argsort(-shares, kind="stable")[: max(1, round(shares.sum()))]] = True
        return [self._predict(shares, chosen) for _ in examples]

    def tabulate(
        self, examples: Sequence[TextExample], predictions: Sequence[Prediction]
    ) -> dict[str, dict[str, float | int]]:
        labels, answers = self._pair_marks(examples, predictions)
        columns = (marks.sum(axis=0).tolist() for marks in (labels, answers, labels & answers))
        return make_table(self.labels, map(Counts, *columns))

    def show(self, example: TextExample) -> dict[str, Any]:
        return example.inputs | {"gold": [name for name in self.labels if name in example.label]}

    def review(self, example: TextExample, prediction: Prediction) -> dict[str, Any] | None:
        """Return the error of a prediction, with the probability of the most confident wrong decision."""
        wrong = set(example.label) ^ set(prediction["labels"])
        if not wrong:
            return None
        shares = [(name in prediction["labels"], prediction["probabilities"][name]) for name in wrong]
        return self.show(example) | {
            "predicted": list(prediction["labels"]),
            "probability": max(share if is_given else 1 - share for is_given, share in shares),
        }

    def make_measure(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> Measure:
        labels, answers = self._pair_marks(examples, predictions)
        return lambda chosen: set_metrics(labels[chosen], answers[chosen], self.labels)[self.main_metric]

    def _pair_marks(
        self, examples: Sequence[TextExample], predictions: Sequence[Prediction]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the labels of the examples and the predicted ones, bool, (examples, labels) each."""
        labels_of(examples)
        answers = [
            TextExample("", label=tuple(map(spell_label, prediction["labels"])), place=f"prediction {number}")
            for number, prediction in enumerate(predictions, 1)
        ]
        return self._mark(examples), self._mark(answers)

    def _predict(self, probabilities: np.ndarray, chosen: np.ndarray) -> Prediction:
        return {
            "labels": [label for label, given in zip(self.labels, chosen, strict=True) if given],
            "probabilities": dict(zip(self.labels, probabilities.tolist(), strict=True)),
        }

    def _mark(self, examples: Sequence[TextExample]) -> np.ndarray:
        """Return which labels each example has, bool, (examples, labels)."""
        require_learnt(self.labels)
        pairs = [(row, name, example.place) for row, example in enumerate(examples) for name in example.label]
        rows, names, places = zip(*pairs, strict=True) if pairs else ((), (), ())
        marks = np.zeros((len(examples), len(self.labels)), dtype=bool)
        marks[list(rows), number_labels(names, places, self.labels)] = True
        return marks

    def _read_labels(self, place: str, values: list) -> tuple[str, ...]:
        if self.label_columns:
            marks = [MARKS.get(value.strip().lower()) if isinstance(value, str) else None for value in values]
            for column, mark, value in zip(self.label_columns, marks, values, strict=True):
                if mark is None:
                    raise ValueError(
                        f"{place}: column {column!r} must hold 0 or 1. Received: {abridge([repr(value)])}. Correct the "
                        "row."
                    )
            return tuple(column for column, mark in zip(self.label_columns, marks, strict=True) if mark)
        value = values[0]
        if isinstance(value, str):
            names = value.split(self.separator) if value.strip() else []
        else:
            names = [spell_label(name) for name in value] if isinstance(value, list) else [value]
        if not all(isinstance(name, str) and name.strip() for name in names):
            raise ValueError(
                f"{place}: column {self.label!r} must hold labels with {self.separator!r} between them, or nothing, or "
                f"in .jsonl or .parquet a list of them. Received: {abridge([repr(value)])}. Correct the row."
            )
        for name in names:
            require_text(place, self.label, name)
        return tuple(names)
