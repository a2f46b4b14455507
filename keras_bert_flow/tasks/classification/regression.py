"""Text regression: a number for a text or a pair of texts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from keras_bert_flow.tasks.classification.settings import RegressionSettings
from keras_bert_flow.tasks.core.answers import logits_of
from keras_bert_flow.tasks.core.checks import check_main_metric, refuse_labels
from keras_bert_flow.tasks.core.features import Features
from keras_bert_flow.tasks.core.metrics import CORRELATIONS, regression_metrics
from keras_bert_flow.tasks.core.task import Measure, Prediction, Task
from keras_bert_flow.tasks.core.texts import (
    TextExample,
    are_labelled,
    encode_examples,
    labels_of,
    pose_texts,
    read_examples,
)
from keras_bert_flow.tasks.formats.glue_table import read_glue_table, write_glue_table
from keras_bert_flow.tasks.formats.scores import read_score, require_different_scores
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

COLLAPSED = 0.01  # share of the label range; predicted numbers are hardly ever exactly equal


@final
@dataclass(frozen=True)
class Regression(RegressionSettings, Task):
    """Text regression, from a table as read by `tables.read_table` whose labels are numbers.

    The model returns {"logits": (rows,) or (rows, 1)}, in the units of the table. Where these are far from ordinary
    scales, training standardises them, and the published head converts back; see `finetuning.label_units`. A prediction
    is {"score"}. `score` returns `metrics.regression_metrics`.

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

    labels: tuple[str, ...] = ()

    def __post_init__(self):
        check_main_metric(self.main_metric, CORRELATIONS)
        refuse_labels(self.labels, self.kind)
        lowest, highest = self._range
        if not lowest < highest:
            raise ValueError(f"`lowest` must be less than `highest`. Received: {lowest} and {highest}. Swap them.")

    def read(self, path: str | Path, max_examples: int | None = None, has_labels: bool = True) -> list[TextExample]:
        columns, shown = ([self.label] if has_labels else []), (self.text, self.text_pair)
        return read_examples(path, shown, columns, self.header, max_examples, self._read_score, not has_labels)

    def pose(self, item: Any) -> TextExample:
        return pose_texts(item, is_pair=self.text_pair is not None)

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
        return regression_metrics(*_pair_scores(examples, predictions))

    def guess(self, training: Sequence[TextExample], examples: Sequence[TextExample]) -> list[Prediction]:
        """Predict the mean of training, the constant with the least squared error."""
        mean = float(np.mean(labels_of(training)))
        return [{"score": mean} for _ in examples]

    def tabulate(
        self, examples: Sequence[TextExample], predictions: Sequence[Prediction]
    ) -> dict[str, dict[str, float | int]]:
        return {}

    def show(self, example: TextExample) -> dict[str, Any]:
        return example.inputs | {"gold": float(example.label)}

    def review(self, example: TextExample, prediction: Prediction) -> dict[str, Any] | None:
        gold, predicted = float(example.label), prediction["score"]
        if gold == predicted:
            return None
        return self.show(example) | {"predicted": predicted, "distance": abs(predicted - gold)}

    def is_collapsed(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> bool:
        """Return whether the predictions span at most a hundredth of the range of the labels."""
        labels, answers = _pair_scores(examples, predictions)
        return bool(np.ptp(labels) > 0 and np.ptp(answers) <= COLLAPSED * np.ptp(labels))

    def make_measure(self, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> Measure:
        labels, answers = _pair_scores(examples, predictions)
        return lambda chosen: regression_metrics(labels[chosen], answers[chosen])[self.main_metric]

    def write_official(self, path: Path, examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> None:
        write_glue_table(path, [found["score"] for found in predictions])

    def read_official(self, path: str | Path, examples: Sequence[TextExample]) -> list[Prediction]:
        return [{"score": score} for score in read_glue_table(path, float)]

    @property
    def _range(self) -> tuple[float, float]:
        lowest = -np.inf if self.lowest is None else self.lowest
        return lowest, np.inf if self.highest is None else self.highest

    def _read_score(self, place: str, values: list) -> float:
        return read_score(place, self.label, values[0], *self._range)


def _pair_scores(examples: Sequence[TextExample], predictions: Sequence[Prediction]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(labels_of(examples)), np.array([prediction["score"] for prediction in predictions])
