"""Base class of tasks: how examples are read, encoded, decoded and scored."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_bert_flow.tasks.core.features import Features
from keras_bert_flow.tasks.core.losses import mean_loss
from keras_bert_flow.tasks.core.matching import match_predictions, wrong_number
from keras_bert_flow.tasks.formats.rows import JSON_LINES, read_objects
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

TASK_FILE = "task.json"  # in a model directory

Prediction = Mapping[str, Any]  # plain JSON values, so that it can be written as a JSON line
Measure = Callable[[np.ndarray], float]  # indices of examples, int, (any number,), possibly repeated → score


class Task(ABC):
    """Base class of tasks. A task is a frozen dataclass: its fields are plain values and fully define it.

    The workflow: `read` a table, `learn` the labels from the training table, `encode` examples, run a model on them,
    `decode` its outputs into predictions, `score` these against the examples.

    Attributes:
        kind: name of the task in a configuration and in a model directory.
        baseline: what `guess` predicts, in words.
        main_metric: the metric of `score` by which runs are compared; higher is better.
        labels: names of the classes or labels, in the order of the model's outputs; empty if there are none.
        headings: metric → its heading in a report, in the order of the columns; other metrics are in `metrics.json`
            only. A heading that ends in " %" is that of a share.
        word_baseline: name of the baseline of `baselines.word_baseline`; None if the kind has none.
        class_name: what a row of `tabulate` describes.
        has_confusion: whether a report has a confusion matrix.
        official_format: name of the official prediction format of this kind; None if there is none.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]  # each kind is a dataclass
    kind: ClassVar[str]
    baseline: ClassVar[str]
    headings: ClassVar[Mapping[str, str]]
    word_baseline: ClassVar[str | None] = None
    class_name: ClassVar[str] = "class"
    has_confusion: ClassVar[bool] = False
    official_format: ClassVar[str | None] = None
    main_metric: str
    labels: tuple[str, ...]

    @abstractmethod
    def read(self, path: str | Path, max_examples: int | None = None, has_labels: bool = True) -> Sequence[Any]:
        """Read examples from a file.

        Args:
            max_examples: read at most this many; None reads all.
            has_labels: whether to read labels; if False, the examples have none.
        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is malformed; the message names file and row.
        """

    @abstractmethod
    def pose(self, item: Any) -> Any:
        """Make an unlabelled example from an item to predict: a text, a pair, or a dict of named values.

        Raises:
            ValueError: the item does not fit this task.
        """

    @abstractmethod
    def learn(self, examples: Sequence[Any]) -> "Task":
        """Return this task with the labels of training examples.

        Raises:
            ValueError: there is nothing to learn from them.
        """

    @abstractmethod
    def encode(self, tokenizer: Tokenizer, examples: Sequence[Any], sequence_length: int) -> Features:
        """Encode examples as rows of at most `sequence_length` tokens, with labels if the examples have them.

        Raises:
            ValueError: an example has a label that was not learnt; the message names file and row.
        """

    @abstractmethod
    def decode(self, outputs: Mapping[str, Any], features: Features, examples: Sequence[Any]) -> list[Prediction]:
        """Turn model outputs into a prediction for each example.

        Args:
            outputs: name of the output → float32, (rows, ...); for outputs per token, a list of arrays, (length, ...)
                each, without padding.
            features: the features that the model was run on.
            examples: the examples that `features` were made from.
        """

    @abstractmethod
    def score(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Compute the metrics of predictions against the labels of the examples.

        Returns:
            Metric → value, including `main_metric`.
        """

    @abstractmethod
    def guess(self, training: Sequence[Any], examples: Sequence[Any]) -> list[Prediction]:
        """Predict each example without looking at it, from what is most common in training: the trivial baseline."""

    @abstractmethod
    def tabulate(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, dict[str, float | int]]:
        """Compute precision, recall and F1 of each class, label or type of span.

        Returns:
            Name → precision, recall and f1, and the counts gold, predicted and correct; empty if there are no classes.
        """

    @abstractmethod
    def show(self, example: Any) -> dict[str, Any]:
        """Return a labelled example for display, in plain JSON values.

        Returns:
            text, text_pair (if there is a second text), and gold: a label, a list of labels, or a number.
        """

    @abstractmethod
    def review(self, example: Any, prediction: Prediction) -> dict[str, Any] | None:
        """Return the error of a prediction for display, in plain JSON values; None if it is correct.

        Returns:
            The fields of `show`, predicted, and its probability; for numbers, instead of that, their distance from the
            label.
        """

    @abstractmethod
    def is_collapsed(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> bool:
        """Return whether all predictions are the same though the labels are not."""

    @abstractmethod
    def make_measure(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> Measure:
        """Return the `main_metric` as a function of the chosen examples, fast enough to be called a thousand times."""

    def write_official(self, path: Path, examples: Sequence[Any], predictions: Sequence[Prediction]) -> None:
        """Write predictions in `official_format`.

        Raises:
            ValueError: there is no such format, or it cannot express a prediction; the message names it.
        """
        raise ValueError(f"Predictions of {self.kind} have no official format. Write them as lines of JSON.")

    def write_beside(  # noqa: B027  (most kinds have no such files)
        self, path: Path, examples: Sequence[Any], predictions: Sequence[Prediction]
    ) -> None:
        """Write files for official scorers next to the JSON lines of a run; their names begin with `path`."""

    def read_official(self, path: str | Path, examples: Sequence[Any]) -> list[Prediction]:
        """Read predictions of the examples in the official format.

        Raises:
            ValueError: there is no such format, or the file is malformed or of other examples; the message names the
                file.
        """
        raise ValueError(f"Predictions of {self.kind} must be in a .jsonl file. Received: {path}. Use `kbf predict`.")

    def score_file(self, path: str | Path, examples: Sequence[Any]) -> dict[str, float]:
        """Score a prediction file against the examples: JSON lines, matched by their texts, or the official format.

        Raises:
            ValueError: the predictions are not of these examples; the message names the file.
        """
        is_lines = str(path).endswith(JSON_LINES)
        predictions = [fields for _, fields in read_objects(path)] if is_lines else self.read_official(path, examples)
        if is_lines:
            predictions = match_predictions(path, predictions, examples)
        elif len(predictions) != len(examples):
            raise wrong_number(path, len(predictions), len(examples))
        try:
            return self.score(examples, predictions)
        except KeyError as error:
            raise ValueError(f"{path}: a prediction lacks {error} for {self.kind}. Predict with such a task.") from None
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        except (TypeError, AttributeError) as error:  # a field has another type in the JSON
            raise ValueError(
                f"{path}: a prediction is not one of {self.kind} ({error}). Predict with such a task."
            ) from None

    def count_unreachable(
        self, tokenizer: Tokenizer, examples: Sequence[Any], features: Features
    ) -> dict[str, dict[str, int]]:
        """Count the labels that no model can predict, or can only guess, because of the encoding.

        Args:
            tokenizer, features: the tokenizer that `encode` used, and the features that it made from the labelled
                examples.
        Returns:
            What is counted → `total`, and a count per reason; see `unreachable.REASONS`. Empty if every label can be
            predicted, as in tasks that label whole texts.
        """
        return {}

    def names_of(self, example: Any) -> Sequence[str]:
        """Return the names of classes, labels or tags that an example has; none for numbers and positions."""
        return [example.label] if isinstance(example.label, str) else []

    def describe_guesses(self, given: Collection[str]) -> list[str]:
        """Return a line about each field that `learn` guessed, and what sets it; none for most kinds.

        Args:
            given: names of the fields that were given rather than guessed.
        """
        return []

    def list_texts(self, example: Any) -> list[str]:
        """Return the texts of an example that the model reads; here those of a `TextExample`."""
        return [example.text, *([] if example.text_pair is None else [example.text_pair])]

    @property
    def model_options(self) -> dict[str, Any]:
        """Constructor arguments of the model other than its labels; empty for most kinds."""
        return {}

    def get_config(self) -> dict[str, Any]:
        """Return the kind and all fields in plain JSON values: `make_task(**task.get_config())` equals the task."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"kind": self.kind} | {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    def save(self, folder: str | Path, sequence_length: int) -> None:
        """Write the task into a model directory, for `stored.read_task`.

        Args:
            sequence_length: most tokens of a row.
        """
        config = self.get_config() | {"sequence_length": sequence_length}
        content = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (Path(folder) / TASK_FILE).write_text(content, encoding="utf-8")

    def measure_loss(self, outputs: Mapping[str, Any], features: Features) -> float:
        """Return the mean training loss of model outputs; see `losses.mean_loss`."""
        return mean_loss(outputs, features)
