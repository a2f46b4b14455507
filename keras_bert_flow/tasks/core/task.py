"""Say what a task is: how examples are read, shown to a model, answered and scored."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from keras_bert_flow.tasks.core.features import Features
from keras_bert_flow.tasks.core.losses import mean_loss
from keras_bert_flow.tasks.formats.rows import JSON_LINES, read_objects
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

TASK_FILE = "task.json"  # of a model directory

Prediction = Mapping[str, Any]  # plain JSON values, so that it can be written as a line
Measure = Callable[[np.ndarray], float]  # places of examples, int, (any number,), some perhaps twice → their score


class Task(ABC):
    """One kind of task. A task is a frozen dataclass: its fields are plain values and say all that it does.

    The walk: `read` a table, `learn` from the training table which labels there are, `encode` examples, have a model
    answer, `decode` its outputs into predictions, `score` these against the examples.

    Attributes:
        kind: name of the task in a configuration and in a model directory.
        baseline: what `guess` predicts, in words.
        main_metric: of those that `score` gives, the one by which runs are compared; higher is better.
        labels: names of what the model chooses from, in the order of its outputs; empty where it chooses from nothing.
        headings: metric → its heading in a report, in the order of the columns; others are in `metrics.json` only. One
            that ends in " %" is of a share.
        word_baseline: what the baseline of `baselines.word_baseline` is called; None where the kind has none.
        class_name: what a row of `tabulate` is.
        has_confusion: whether a report counts which class was taken for which.
        official_format: name of the format in which others take predictions of this kind; None where there is none.
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
            max_examples: read only the first so many.
            has_labels: the file says what is right; otherwise the examples have no labels.
        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file is not such a table; the message names file and row.
        """

    @abstractmethod
    def pose(self, item: Any) -> Any:
        """Make an example without labels of what somebody asks: a text, a pair, or a dict of named values.

        Raises:
            ValueError: the item is not what this task is asked.
        """

    @abstractmethod
    def learn(self, examples: Sequence[Any]) -> "Task":
        """Return this task with the labels of training examples.

        Raises:
            ValueError: there is nothing to learn from them.
        """

    @abstractmethod
    def encode(self, tokenizer: Tokenizer, examples: Sequence[Any], sequence_length: int) -> Features:
        """Turn examples into rows of at most `sequence_length` tokens, with labels where the examples have them.

        Raises:
            ValueError: an example has a label that was not learnt; the message names file and row.
        """

    @abstractmethod
    def decode(self, outputs: Mapping[str, Any], features: Features, examples: Sequence[Any]) -> list[Prediction]:
        """Turn what a model answered into a prediction for each example.

        Args:
            outputs: output of the model → float32, (rows, ...); where each token has an output, a list of arrays of
                (length, ...), without padding.
            features: what the model read.
            examples: what `features` were made of.
        """

    @abstractmethod
    def score(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, float]:
        """Measure predictions against the labels of the examples.

        Returns:
            Metric → value; among them `main_metric`.
        """

    @abstractmethod
    def guess(self, training: Sequence[Any], examples: Sequence[Any]) -> list[Prediction]:
        """Predict each example without looking at it, by what is commonest in training: the baseline to beat."""

    @abstractmethod
    def tabulate(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, dict[str, float | int]]:
        """Measure each class, label or type of span by itself.

        Returns:
            Name → precision, recall and f1, and the counts gold, predicted and correct; empty where there are none.
        """

    @abstractmethod
    def show(self, example: Any) -> dict[str, Any]:
        """Return a labelled example for a reader, in plain JSON values.

        Returns:
            text, text_pair (where there is a second text), and gold: a label, a list of labels, or a number.
        """

    @abstractmethod
    def review(self, example: Any, prediction: Prediction) -> dict[str, Any] | None:
        """Return what is wrong with a prediction, in plain JSON values; None where it is right.

        Returns:
            What `show` returns, predicted, and probability, of what was predicted; of a number in its place distance,
            from what is right.
        """

    @abstractmethod
    def is_collapsed(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> bool:
        """Tell whether all predictions are the same though the labels are not."""

    @abstractmethod
    def make_measure(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> Measure:
        """Return the `main_metric` as a function of the examples that count, made to be called a thousand times."""

    def write_official(self, path: Path, examples: Sequence[Any], predictions: Sequence[Prediction]) -> None:
        """Write predictions in `official_format`.

        Raises:
            ValueError: there is none, or a prediction cannot be said in it; the message names it.
        """
        raise ValueError(f"Predictions of {self.kind} have no official format. Write them as lines of JSON.")

    def write_beside(  # noqa: B027  (most kinds have no such files)
        self, path: Path, examples: Sequence[Any], predictions: Sequence[Prediction]
    ) -> None:
        """Write what official scorers take, beside the lines of JSON of a run; names of the files begin with `path`."""

    def read_official(self, path: str | Path, examples: Sequence[Any]) -> list[Prediction]:
        """Read predictions of the examples in the official format.

        Raises:
            ValueError: there is none, or the file is not in it, or of other examples; the message names the file.
        """
        raise ValueError(f"Predictions of {self.kind} must be in a .jsonl file. Received: {path}. Use `kbf predict`.")

    def score_file(self, path: str | Path, examples: Sequence[Any]) -> dict[str, float]:
        """Measure the predictions of a file against the examples: lines of JSON, or the official format.

        Raises:
            ValueError: the predictions are not of these examples; the message names the file.
        """
        is_lines = str(path).endswith(JSON_LINES)
        predictions = [fields for _, fields in read_objects(path)] if is_lines else self.read_official(path, examples)
        if len(predictions) != len(examples):
            raise ValueError(
                f"{path}: must hold a prediction for each example. Received: {len(predictions)} for {len(examples)}. "
                "Predict the file that they are from."
            )
        try:
            return self.score(examples, predictions)
        except KeyError as error:
            raise ValueError(f"{path}: a prediction lacks {error} for {self.kind}. Predict with such a task.") from None
        except (TypeError, AttributeError) as error:  # a field that JSON gave another type
            raise ValueError(
                f"{path}: a prediction is not one of {self.kind} ({error}). Predict with such a task."
            ) from None

    def count_unreachable(
        self, tokenizer: Tokenizer, examples: Sequence[Any], features: Features
    ) -> dict[str, dict[str, int]]:
        """Count the labels that no model can give, or can only guess, because of the encoding.

        Args:
            tokenizer, features: what `encode` made of the labelled examples, and the tokenizer it used.
        Returns:
            What is counted → `total`, and a count per reason; see `unreachable.REASONS`. Empty where every label can
            be given, as in tasks that label whole texts.
        """
        return {}

    @property
    def model_options(self) -> dict[str, Any]:
        """What the constructor of the model is told besides its labels; of most kinds nothing."""
        return {}

    def get_config(self) -> dict[str, Any]:
        """Return the kind and all fields in plain JSON values: `make_task(**task.get_config())` equals the task."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"kind": self.kind} | {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    def save(self, folder: str | Path, sequence_length: int) -> None:
        """Write the task into a model directory, for `stored.read_task`.

        Args:
            sequence_length: how long its rows are at most, in tokens.
        """
        config = self.get_config() | {"sequence_length": sequence_length}
        content = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (Path(folder) / TASK_FILE).write_text(content, encoding="utf-8")

    def measure_loss(self, outputs: Mapping[str, Any], features: Features) -> float:
        """Return the mean loss of what a model answered, as it is trained on it; see `losses.mean_loss`."""
        return mean_loss(outputs, features)
