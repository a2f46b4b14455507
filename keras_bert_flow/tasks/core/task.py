"""Base class of tasks: how examples are read, encoded, decoded, scored and matched with predictions."""

import json
from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping, Sequence, Sized
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import scipy  # its submodules are loaded when they are used

from keras_bert_flow.tasks.core.metrics import has_collapsed
from keras_bert_flow.tasks.formats.rows import JSON_LINES, abridge, read_objects
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

# Match predictions in JSON lines to the examples that they are of, by their texts or their index.

INDEX = "index"  # of the example, from 0, as in GLUE's tables


def with_inputs(examples: Sequence[Any], predictions: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return predictions with the texts that they are of, by which `match_predictions` matches them, or their id."""
    pairs = zip(examples, predictions, strict=True)
    return [dict(found) if "id" in found else example.inputs | dict(found) for example, found in pairs]


def match_predictions(
    path: str | Path, predictions: Sequence[Mapping[str, Any]], examples: Sequence[Any]
) -> list[Mapping[str, Any]]:
    """Return the prediction of each example.

    Those of equal texts are taken in their order. Predictions for blank texts, which `kbf predict` gives for blank
    lines, are left out if no example is blank.

    Raises:
        ValueError: the predictions have neither texts nor an index, or are not one for each example.
    """
    names = list(examples[0].inputs)
    if all(name in found for found in predictions for name in names):
        return _match_texts(path, predictions, examples, names)
    if all(type(found.get(INDEX)) is int for found in predictions):
        by_index = {found[INDEX]: found for found in predictions}
        if len(predictions) != len(examples):
            raise wrong_number(path, len(predictions), len(examples))
        if set(by_index) != set(range(len(examples))):
            raise ValueError(
                f"{path}: the field `{INDEX}` must number the examples from 0 to {len(examples) - 1}. "
                "Received: other numbers. Predict the whole file."
            )
        return [by_index[number] for number in range(len(examples))]
    raise ValueError(
        f"{path}: predictions must have the texts that they are of ({', '.join(names)}) or their `{INDEX}` from 0, or "
        "their order is only a guess. Received: lines without. Make the file with `kbf predict --input`, or add one."
    )


def wrong_number(path: str | Path, predictions: int, examples: int) -> ValueError:
    """Return the error for a file with another number of predictions than examples."""
    return ValueError(
        f"{path}: must hold a prediction for each example. Received: {predictions} for {examples}. "
        "Predict the file that they are from."
    )


def _match_texts(
    path: str | Path, predictions: Sequence[Mapping[str, Any]], examples: Sequence[Any], names: Sequence[str]
) -> list[Mapping[str, Any]]:
    of_texts: defaultdict[str, deque[Mapping[str, Any]]] = defaultdict(deque)
    for found in predictions:
        of_texts[json.dumps([found[name] for name in names])].append(found)
    matched: list[Mapping[str, Any]] = []
    for example in examples:
        waiting = of_texts[json.dumps([example.inputs[name] for name in names])]
        if not waiting:
            raise ValueError(
                f"{path}: must hold a prediction for each example. Received: none for "
                f"{abridge([str(value) for value in example.inputs.values()])}. Predict the file that they are from."
            )
        matched.append(waiting.popleft())
    left = [found for waiting in of_texts.values() for found in waiting]
    if strange := [found for found in left if any(_is_text(found[name]) for name in names)]:
        raise ValueError(
            f"{path}: each prediction must be of an example. Received: {len(strange):,} that are not, as of "
            f"{abridge([str(strange[0][name]) for name in names])}. Predict the file that they are from."
        )
    return matched


def _is_text(value: Any) -> bool:
    return any(map(_is_text, value)) if isinstance(value, list) else bool(str(value).strip())


# Features: encoded examples of a task, as sequences of token ids without padding, with labels.

IGNORED = -1  # label of positions without one, such as [CLS], continuations and padding; its weight is 0


@dataclass(frozen=True)
class Features:
    """Rows for a model. An example gives one row, or several if it is split into windows.

    Attributes:
        token_ids: int32, (length,) each, [CLS] and [SEP] included; `sequences_per_row` of them make a row.
        first_lengths: int32, (sequences,). Tokens of segment 0 of each sequence.
        examples: int32, (rows,). Index of the example of each row.
        labels: model output → its labels: an array, (rows, ...), or, for labels per token, a list of arrays, (length,)
            each, with `IGNORED` where there is no label. Empty for unlabelled texts.
        sequences_per_row: more than 1 if a row is a choice between texts, or a comparison.
        details: what the task needs for decoding, one entry per row.
        keeps_axis: keep the axis of sequences even with one sequence per row, as for a model of several.
        sequence_length: length that sequences were truncated to, so that no batch is wider; None if they were not.
        full_lengths: int, (sequences,). Length of each sequence before truncation; None if long texts are divided into
            windows instead.
    """

    token_ids: Sequence[np.ndarray]
    first_lengths: np.ndarray
    examples: np.ndarray
    labels: Mapping[str, Any] = field(default_factory=dict)
    sequences_per_row: int = 1
    details: Sequence[Any] = ()
    keeps_axis: bool = False
    sequence_length: int | None = None
    full_lengths: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def has_axis(self) -> bool:
        """Whether inputs are (rows, sequences, length), not (rows, length)."""
        return self.keeps_axis or self.sequences_per_row > 1

    @property
    def labelled_tokens(self) -> np.ndarray:
        """Number of tokens with a label in each row, int, (rows,); 0 if labels are per row."""
        of_tokens = [values for values in self.labels.values() if not isinstance(values, np.ndarray)]
        counts = [[np.count_nonzero(row != IGNORED) for row in values] for values in of_tokens]
        return np.array(counts, np.int64).sum(axis=0) if counts else np.zeros(len(self), np.int64)

    @property
    def lengths(self) -> np.ndarray:
        """Length of the longest sequence of each row, int, (rows,)."""
        lengths = np.array([len(sequence) for sequence in self.token_ids], dtype=np.int64)
        return lengths.reshape(-1, self.sequences_per_row).max(axis=1, initial=0)


def join_texts(
    tokenizer: Tokenizer, first: np.ndarray, second: np.ndarray | None, sequence_length: int
) -> tuple[np.ndarray, int]:
    """Join texts to [CLS] A [SEP] or [CLS] A [SEP] B [SEP], truncating the end of the longer text if necessary.

    Some families have two [SEP] between A and B: `Tokenizer.separators`.

    Returns:
        The token ids, int32, (length,), and the number of tokens in segment 0.
    Raises:
        ValueError: there is no room for the special tokens.
    Source: google-research/bert, run_classifier.py, `convert_single_example`.
    """
    between = [tokenizer.sep_id] * tokenizer.separators
    num_special = count_joined(tokenizer, (), None if second is None else ())
    if sequence_length < num_special:
        raise ValueError(
            f"`sequence_length` must be at least {num_special}, for the special tokens around texts. "
            f"Received: {sequence_length}. Give more."
        )
    if second is None:
        token_ids = np.concatenate([[tokenizer.cls_id], first[: sequence_length - 2], [tokenizer.sep_id]])
        return token_ids.astype(np.int32), len(token_ids)
    lengths = [len(first), len(second)]
    while sum(lengths) > sequence_length - num_special:
        lengths[lengths[0] <= lengths[1]] -= 1
    parts = ([tokenizer.cls_id], first[: lengths[0]], between, second[: lengths[1]], [tokenizer.sep_id])
    return np.concatenate(parts).astype(np.int32), lengths[0] + 1 + len(between)


def count_joined(tokenizer: Tokenizer, first: Sized, second: Sized | None = None) -> int:
    """Return the number of tokens of joined texts without truncation."""
    return len(first) + (2 if second is None else 2 + tokenizer.separators + len(second))


# Compute the training loss from model outputs.


def mean_loss(outputs: Mapping[str, Any], features: Features) -> float:
    """Return the mean loss over all labels, averaged over the outputs of the model.

    Integer labels, per row or per token, have the cross-entropy in nats; (rows, labels) of 0.0 and 1.0 the binary
    cross-entropy; one number per row the squared error.

    Args:
        outputs: see `Task.decode`.
        features: rows with labels.
    """
    log_expit, logsumexp = scipy.special.log_expit, scipy.special.logsumexp
    losses = []
    for name, labels in features.labels.items():
        answers = outputs[name]
        if not isinstance(labels, np.ndarray):  # labels per token
            tokens, answers = np.concatenate(labels), np.concatenate(answers)
            answers, labels = answers[tokens != IGNORED], tokens[tokens != IGNORED]
        if np.issubdtype(labels.dtype, np.integer):
            pairs = ((np.asarray(row, np.float64), label) for row, label in zip(answers, labels, strict=True))
            losses.append(np.mean([logsumexp(logits) - logits[label] for logits, label in pairs]))
            continue
        answers = np.asarray(answers, np.float64).reshape(labels.shape)
        if labels.ndim == 1:
            losses.append(np.mean((answers - labels) ** 2))
        else:
            losses.append(-np.mean(labels * log_expit(answers) + (1 - labels) * log_expit(-answers)))
    return float(np.mean(losses))


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
        answer: field of a prediction that is all the same if a model has collapsed.
        class_name: what a row of `tabulate` describes.
        has_confusion: whether a report has a confusion matrix.
        official_format: name of the official prediction format of this kind; None if there is none.
        is_asked_in_files: whether an item has more parts than the arguments of `kbf predict` can give.
        architecture: the class of `transformers` for this kind, without the family: `ForTokenClassification`; None if
            a model directory without `task.json` is not recognised as of this kind.
        problem_type: of `ForSequenceClassification`: which of its three problems.
        has_classes: whether the outputs of the model are named by `labels`.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]  # each kind is a dataclass
    kind: ClassVar[str]
    baseline: ClassVar[str]
    headings: ClassVar[Mapping[str, str]]
    word_baseline: ClassVar[str | None] = None
    answer: ClassVar[str] = "label"
    class_name: ClassVar[str] = "class"
    has_confusion: ClassVar[bool] = False
    official_format: ClassVar[str | None] = None
    is_asked_in_files: ClassVar[bool] = False
    architecture: ClassVar[str | None] = None
    problem_type: ClassVar[str | None] = None
    has_classes: ClassVar[bool] = False
    main_metric: str
    labels: tuple[str, ...]

    @classmethod
    def find_fields(cls, labels: Sequence[str], source: str) -> dict[str, Any]:
        """Return the fields of a task that the head of a model determines, for a directory without `task.json`.

        Args:
            labels: names of the outputs, if the kind has classes.
            source: the file that they are from, for messages.
        """
        return {"labels": labels} if cls.has_classes else {}

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
    def make_example(self, item: Any) -> Any:
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

    def tabulate(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> dict[str, dict[str, float | int]]:
        """Compute precision, recall and F1 of each class, label or type of span.

        Returns:
            Name → precision, recall and f1, and the counts gold, predicted and correct; empty if there are no classes.
        """
        return {}

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

    def is_collapsed(self, examples: Sequence[Any], predictions: Sequence[Prediction]) -> bool:
        """Return whether all predictions are the same though the labels are not."""
        answers = (json.dumps(prediction[self.answer]) for prediction in predictions)
        return has_collapsed((example.gold for example in examples), answers)

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
        except (TypeError, AttributeError, OverflowError) as error:  # a field has another type in the JSON
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
            What is counted → `total`, and a count per reason; see `tasks.core.texts.REASONS`. Empty if every
            label can be predicted, as in tasks that label whole texts.
        """
        return {}

    def names_of(self, example: Any) -> Sequence[str]:
        """Return the names of classes, labels or tags that an example has; none for numbers and positions."""
        if isinstance(example.label, tuple):
            return example.label
        return [example.label] if isinstance(example.label, str) else []

    def describe_guesses(self, given: Collection[str]) -> list[str]:
        """Return a line about each field that `learn` guessed, and what sets it; none for most kinds.

        Args:
            given: names of the fields that were given rather than guessed.
        """
        return []

    def list_texts(self, example: Any) -> list[str]:
        """Return the texts of an example that the model reads, in the order of its `inputs`."""
        return [text for given in example.inputs.values() for text in ([given] if isinstance(given, str) else given)]

    @property
    def model_options(self) -> dict[str, Any]:
        """Constructor arguments of the model other than its labels; empty for most kinds."""
        return {}

    def get_config(self) -> dict[str, Any]:
        """Return the kind and all fields in plain JSON values: `make_task(**task.get_config())` equals the task."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"kind": self.kind} | {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}

    def save(self, folder: str | Path, sequence_length: int) -> None:
        """Write the task into a model directory, for `registry.read_task`.

        Args:
            sequence_length: most tokens of a row.
        """
        config = self.get_config() | {"sequence_length": sequence_length}
        content = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
        (Path(folder) / TASK_FILE).write_text(content, encoding="utf-8")

    def measure_loss(self, outputs: Mapping[str, Any], features: Features) -> float:
        """Return the mean training loss of model outputs; see `mean_loss`."""
        return mean_loss(outputs, features)
