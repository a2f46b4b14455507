"""Text classification and regression: a class or a number for a text or a pair of texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from keras_bert_flow.tasks.core.metrics import (
    CORRELATIONS,
    METRICS,
    classification_metrics,
    count_classes,
    majority_class,
    make_table,
    matthews,
    mean_measure,
    regression_metrics,
)
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
    pair_numbers,
    probabilities_of,
    read_examples,
    refuse_labels,
    require_learnt,
)
from keras_bert_flow.tasks.formats.rows import spell_label
from keras_bert_flow.tasks.formats.tables import (
    class_names,
    number_labels,
    read_glue_table,
    read_score,
    require_different_scores,
    write_glue_table,
)
from keras_bert_flow.tasks.settings import ClassificationSettings, RegressionSettings
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer


@final
@dataclass(frozen=True)
class Classification(ClassificationSettings, TextTask):
    """Text classification, from a table as read by `tables.read_table`.

    The model returns {"logits": (rows, classes)}. A prediction is {"label", "probability", "probabilities"}, the last
    by class name. `score` returns `metrics.classification_metrics`.

    Attributes:
        text, text_pair, label: columns; numbers from 0 if there is no header.
        header: the first line of a .tsv or .csv names the columns.
        main_metric: accuracy, f1, f1_positive (two classes only) or matthews.
        labels: the classes. If given rather than learnt, the training table may have no others. Of two, the second is
            the positive class.
    """

    baseline: ClassVar[str] = "majority class"
    headings: ClassVar[Mapping[str, str]] = {
        "accuracy": "accuracy %",
        "f1": "macro F1 %",
        "f1_positive": "class 1 F1 %",
        "matthews": "Matthews correlation",
    }
    word_baseline: ClassVar[str | None] = "TF-IDF with logistic regression"
    has_confusion: ClassVar[bool] = True
    official_format: ClassVar[str | None] = "glue"
    architecture: ClassVar[str | None] = "ForSequenceClassification"
    problem_type: ClassVar[str | None] = "single_label_classification"
    has_classes: ClassVar[bool] = True

    def __post_init__(self):
        check_labels(self.labels, least=2)
        two = len(self.labels) in (0, 2)  # 0: not learnt yet
        check_main_metric(self.main_metric, [name for name in METRICS if two or name != "f1_positive"])

    def read(self, path: str | Path, max_examples: int | None = None, has_labels: bool = True) -> list[TextExample]:
        columns, shown = ([self.label] if has_labels else []), (self.text, self.text_pair)
        return read_examples(path, shown, columns, self.header, max_examples, None, not has_labels)

    def learn(self, examples: Sequence[TextExample]) -> "Classification":
        labels = labels_of(examples)
        if not self.labels:
            return replace(self, labels=class_names(labels, f"{len(examples)} examples from {examples[0].place}"))
        self._label_ids(examples)
        return self

    def encode(self, tokenizer: Tokenizer, examples: Sequence[TextExample], sequence_length: int) -> Features:
        labels = {"logits": self._label_ids(examples)} if are_labelled(examples) else {}
        return encode_examples(tokenizer, examples, sequence_length, labels)

    def decode(
        self, outputs: Mapping[str, Any], features: Features, examples: Sequence[TextExample]
    ) -> list[Prediction]:
        require_learnt(self.labels)
        return [self._predict(row, row.argmax()) for row in probabilities_of(outputs, features, len(self.labels))]

    def score(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        return classification_metrics(*self._pair_ids(examples, predictions), len(self.labels))

    def guess(self, training: Sequence[TextExample], examples: Sequence[TextExample]) -> list[Prediction]:
        """Predict the majority class of training, the first of ties, with the class shares there as probabilities."""
        labels_of(training)
        label_ids = self._label_ids(training)
        shares = np.bincount(label_ids, minlength=len(self.labels)) / len(label_ids)
        return [self._predict(shares, majority_class(label_ids)) for _ in examples]

    def tabulate(
        self, examples: Sequence[TextExample], predictions: Sequence[Prediction]
    ) -> dict[str, dict[str, float | int]]:
        return make_table(self.labels, count_classes(*self._pair_ids(examples, predictions), len(self.labels)))

    def show(self, example: TextExample) -> dict[str, Any]:
        return example.inputs | {"gold": example.label}

    def review(self, example: TextExample, prediction: Prediction) -> dict[str, Any] | None:
        predicted = prediction["label"]
        if example.label == predicted:
            return None
        return self.show(example) | {"predicted": predicted, "probability": prediction["probability"]}

    def make_measure(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> Measure:
        labels, answers = self._pair_ids(examples, predictions)
        if self.main_metric == "accuracy":
            return mean_measure(labels == answers)
        pairs = labels.astype(np.int64) * len(self.labels) + answers

        def measure(chosen: np.ndarray) -> float:
            if self.main_metric == "matthews":
                # One entry per pair is faster in scikit-learn than all examples.
                found, counts = np.unique(pairs[chosen], return_counts=True)
                return matthews(*np.divmod(found, len(self.labels)), counts)
            classes = count_classes(labels[chosen], answers[chosen], len(self.labels))
            if self.main_metric == "f1_positive":
                return classes[1].f1
            scores = [one.f1 for one in classes if one.gold or one.predicted]
            return sum(scores) / len(scores) if scores else 0.0

        return measure

    def write_official(self, path: Path, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> None:
        write_glue_table(path, [found["label"] for found in predictions])

    def read_official(self, path: str | Path, examples: Sequence[TextExample]) -> list[Prediction]:
        return [{"label": label} for label in read_glue_table(path, str)]

    def _pair_ids(
        self, examples: Sequence[TextExample], predictions: Sequence[Prediction]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the class ids of the labels and of the predictions."""
        labels_of(examples)
        places = [f"prediction {number}" for number in range(1, len(predictions) + 1)]
        names = [spell_label(prediction["label"]) for prediction in predictions]  # other programs write numbers
        answers = number_labels(names, places, self.labels)
        return self._label_ids(examples), answers

    def _predict(self, probabilities: np.ndarray, chosen: int) -> Prediction:
        return {
            "label": self.labels[chosen],
            "probability": float(probabilities[chosen]),
            "probabilities": dict(zip(self.labels, probabilities.tolist(), strict=True)),
        }

    def _label_ids(self, examples: Sequence[TextExample]) -> np.ndarray:
        require_learnt(self.labels)
        labels = [example.label for example in examples]
        return number_labels(labels, [example.place for example in examples], self.labels)


# Text regression: a number for a text or a pair of texts.

COLLAPSED = 0.01  # share of the label range; predicted numbers are hardly ever exactly equal


@final
@dataclass(frozen=True)
class Regression(RegressionSettings, TextTask):
    """Text regression, from a table as read by `tables.read_table` whose labels are numbers.

    The model returns {"logits": (rows,) or (rows, 1)}, in the units of the table. Where these are far from ordinary
    scales, training standardises them, and the published head converts back; see
    `training.finetuning.starts.LabelUnits`. A prediction is {"score"}. `score` returns `metrics.regression_metrics`.

    Attributes:
        text, text_pair, label: columns; numbers from 0 if there is no header.
        header: the first line of a .tsv or .csv names the columns.
        main_metric: pearson or spearman.
        lowest, highest: no score of the table may be lower or higher, and predictions are clipped to them.
        labels: always empty: there are no classes.
    """

    baseline: ClassVar[str] = "mean of the training table"
    headings: ClassVar[Mapping[str, str]] = {
        "pearson": "Pearson correlation",
        "spearman": "Spearman correlation",
        "mse": "mean squared error",
    }
    word_baseline: ClassVar[str | None] = "TF-IDF with ridge regression"
    official_format: ClassVar[str | None] = "glue"
    architecture: ClassVar[str | None] = "ForSequenceClassification"
    problem_type: ClassVar[str | None] = "regression"

    labels: tuple[str, ...] = ()

    def __post_init__(self):
        check_main_metric(self.main_metric, CORRELATIONS)
        refuse_labels(self.labels, self.kind)
        lowest, highest = self._range
        if not lowest < highest:
            raise ValueError(f"`lowest` must be less than `highest`. Received: {lowest} and {highest}. Swap them.")

    def read(self, path: str | Path, max_examples: int | None = None, has_labels: bool = True) -> list[TextExample]:
        columns, shown = ([self.label] if has_labels else []), (self.text, self.text_pair)
        return read_examples(
            *(path, shown, columns, self.header, max_examples),
            read_label=lambda place, values: read_score(place, self.label, values[0], *self._range),
            keeps_blanks=not has_labels,
        )

    def learn(self, examples: Sequence[TextExample]) -> "Regression":
        scores = labels_of(examples)
        require_different_scores(scores, examples[0].place)
        return self

    def encode(self, tokenizer: Tokenizer, examples: Sequence[TextExample], sequence_length: int) -> Features:
        scores = [example.label for example in examples]
        labels = {"logits": np.array(scores, dtype=np.float32)} if are_labelled(examples) else {}
        return encode_examples(tokenizer, examples, sequence_length, labels)

    def decode(
        self, outputs: Mapping[str, Any], features: Features, examples: Sequence[TextExample]
    ) -> list[Prediction]:
        scores = logits_of(outputs, features, width=1)[:, 0].clip(*self._range)
        return [{"score": score} for score in scores.tolist()]

    def score(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        return regression_metrics(*pair_numbers(examples, predictions, "score"))

    def guess(self, training: Sequence[TextExample], examples: Sequence[TextExample]) -> list[Prediction]:
        """Predict the mean of training, the constant with the least squared error."""
        mean = float(np.mean(labels_of(training)))
        return [{"score": mean} for _ in examples]

    def show(self, example: TextExample) -> dict[str, Any]:
        return example.inputs | {"gold": float(example.label)}

    def review(self, example: TextExample, prediction: Prediction) -> dict[str, Any] | None:
        gold, predicted = float(example.label), prediction["score"]
        if gold == predicted:
            return None
        return self.show(example) | {"predicted": predicted, "distance": abs(predicted - gold)}

    def is_collapsed(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> bool:
        """Return whether the predictions span at most a hundredth of the range of the labels."""
        labels, answers = pair_numbers(examples, predictions, "score")
        return bool(np.ptp(labels) > 0 and np.ptp(answers) <= COLLAPSED * np.ptp(labels))

    def make_measure(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> Measure:
        labels, answers = pair_numbers(examples, predictions, "score")
        return lambda chosen: regression_metrics(labels[chosen], answers[chosen])[self.main_metric]

    def write_official(self, path: Path, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> None:
        write_glue_table(path, [found["score"] for found in predictions])

    def read_official(self, path: str | Path, examples: Sequence[TextExample]) -> list[Prediction]:
        return [{"score": score} for score in read_glue_table(path, float)]

    @property
    def _range(self) -> tuple[float, float]:
        lowest = -np.inf if self.lowest is None else self.lowest
        return lowest, np.inf if self.highest is None else self.highest
