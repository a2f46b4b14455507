"""Multiple choice: choose how a text continues, or which answer to a question about it is correct."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any, ClassVar, final

import numpy as np

from keras_bert_flow.files.outputs import walk_input
from keras_bert_flow.tasks.core.metrics import classification_metrics, majority_class, mean_measure
from keras_bert_flow.tasks.core.task import Features, Measure, Prediction, Task, count_joined, join_texts
from keras_bert_flow.tasks.core.texts import (
    are_labelled,
    check_main_metric,
    labels_of,
    probabilities_of,
    refuse_labels,
    take_texts,
)
from keras_bert_flow.tasks.formats.rows import (
    abridge,
    parse_object,
    pick_fields,
    read_lines,
    read_objects,
    require_ending,
    spell_label,
)
from keras_bert_flow.tasks.formats.tables import limit_examples, read_columns, require_text
from keras_bert_flow.tasks.settings import MultipleChoiceSettings
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

# Read multiple-choice questions: tables as in SWAG, or JSON objects as in RACE with one or more questions each.


@dataclass(frozen=True)
class ChoiceExample:
    """A context, optionally a question about it or the start of its continuation, and the choices.

    Attributes:
        label: index of the correct choice, from 0; None if unknown.
        place: file and row, for messages; any other name if not read from a file.
    """

    context: str
    question: str | None
    choices: tuple[str, ...]
    label: int | None = None
    place: str = "an example"

    @property
    def inputs(self) -> dict[str, Any]:
        """The texts by name: context, question where there is one, and the list of choices."""
        question = {} if self.question is None else {"question": self.question}
        return {"context": self.context, **question, "choices": list(self.choices)}

    @property
    def gold(self) -> int | None:
        return self.label


@dataclass(frozen=True)
class ChoiceColumns:
    """Columns of a table, one per choice; or fields of a JSON object, with a single field for the list of choices."""

    context: str
    question: str | None
    choices: tuple[str, ...]
    label: str | None

    @property
    def texts(self) -> list[str]:
        return [name for name in (self.context, self.question, *self.choices) if name is not None]

    @property
    def labels(self) -> list[str]:
        return [] if self.label is None else [self.label]


def count_choices(examples: Sequence[ChoiceExample]) -> int:
    """Return the number of choices, which is the same for all examples.

    Raises:
        ValueError: there are no examples, or they differ in their number of choices.
    """
    if not examples:
        raise ValueError("Examples must be at least one. Received: none. Read a table that holds some.")
    count = len(examples[0].choices)
    for example in examples:
        if len(example.choices) != count:
            raise ValueError(
                f"{example.place}: every example must have as many choices as the first. "
                f"Received: {len(example.choices)}, not {count}. Correct the row or drop it."
            )
    return count


def _read_table(path: str | Path, columns: ChoiceColumns, header: bool) -> Iterator[ChoiceExample]:
    for number, row in read_columns(
        path, columns.texts, columns.labels, header, None, keeps_blanks=columns.label is None
    ):
        values = dict(zip([*columns.texts, *columns.labels], row, strict=True))
        choices = tuple(values[name] for name in columns.choices)
        place, question = f"{path}, row {number}", values[columns.question] if columns.question is not None else None
        label = _read_label(place, columns, values, len(choices))
        yield ChoiceExample(values[columns.context], question, choices, label, place)


def _read_objects(path: Path, columns: ChoiceColumns) -> Iterator[ChoiceExample]:
    names = [*columns.texts, *columns.labels]
    for place, fields in _find_objects(path, skips_blanks=columns.label is not None):
        values = dict(zip(names, pick_fields(place, fields, names), strict=True))
        if columns.question is None or not isinstance(values[columns.question], list):
            yield _make_example(place, columns, values)
            continue
        lists = [values[name] for name in names if name != columns.context]
        if len({len(entries) if isinstance(entries, list) else None for entries in lists}) > 1:
            raise ValueError(
                f"{place}: {abridge(names[1:])} must be lists of one length. "
                f"Received: {abridge([repr(entries) for entries in lists])}. Correct them."
            )
        for number, entries in enumerate(zip(*lists, strict=True), 1):
            question = dict(zip([name for name in names if name != columns.context], entries, strict=True))
            context = {columns.context: values[columns.context]}
            yield _make_example(f"{place}, question {number}", columns, context | question)


def _find_objects(path: Path, skips_blanks: bool) -> Iterator[tuple[str, dict]]:
    if not path.exists():
        raise FileNotFoundError(f"Examples must be in a file or folder. Received: {path}, which is not one. Check it.")
    if path.is_dir():
        files = sorted(file for file in walk_input(path) if file.suffix == ".txt")
    elif require_ending(path, (".jsonl", ".txt")) == ".txt":
        files = [path]
    else:
        for number, fields in read_objects(path, skips_blanks=skips_blanks):
            yield f"{path}, row {number}", fields
        return
    for file in files:
        yield str(file), parse_object(str(file), "\n".join(line for _, line in read_lines(file)))


def _make_example(place: str, columns: ChoiceColumns, values: dict[str, Any]) -> ChoiceExample:
    choices = values[columns.choices[0]]
    if not isinstance(choices, list) or len(choices) < 2:
        raise ValueError(
            f"{place}: {columns.choices[0]!r} must be a list of two or more choices. "
            f"Received: {abridge([repr(choices)])}. Correct it."
        )
    texts = {name: values[name] for name in (columns.context, columns.question) if name is not None}
    for name, text in [*texts.items(), *((columns.choices[0], choice) for choice in choices)]:
        require_text(place, name, text)
    label = _read_label(place, columns, values, len(choices))
    question = values[columns.question] if columns.question is not None else None
    return ChoiceExample(values[columns.context], question, tuple(choices), label, place)


def _read_label(place: str, columns: ChoiceColumns, values: dict[str, Any], count: int) -> int | None:
    if columns.label is None:
        return None
    letters = ascii_uppercase[:count]
    places = {letter: n for n, letter in enumerate(letters)}
    places |= {spelt: n for n in range(count) for spelt in (f"{n}", f"{n}.0")}  # data frames with gaps have floats
    value = spell_label(values[columns.label])
    spelt = value.strip().upper() if isinstance(value, str) else None
    if spelt not in places:
        raise ValueError(
            f"{place}: {columns.label!r} must be the right choice, from 0 to {count - 1} or from A to {letters[-1]}. "
            f"Received: {abridge([repr(value)])}. Correct it."
        )
    return places[spelt]


@final
@dataclass(frozen=True)
class MultipleChoice(MultipleChoiceSettings, Task):
    """Multiple choice between texts, in the layout of SWAG (the defaults), or of RACE: `configs/tasks/race.yaml`.

    Each choice is a sequence of its own, [CLS] context [SEP] question and choice [SEP]. The model computes one logit
    per sequence and returns {"logits": (rows, choices)}. A prediction is {"label": index of the choice, from 0, "text",
    "probability", "probabilities"}, the last in the order of the choices. `score` returns the accuracy.

    Attributes:
        context: column of the text that is read first.
        question: column of the text before each choice, joined by a space; None if there is none.
        choices: one column per choice; or one field of a JSON object that holds a list of them.
        label: column of the correct choice, a number from 0 or a letter from A.
        header: the first line of a .tsv or .csv names the columns.
        main_metric: accuracy.
        labels: always empty: the choices differ between examples.
    Source: Devlin et al. 2019, section 4.4, for the sequences.
    """

    baseline: ClassVar[str] = "commonest place"
    headings: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy %"}
    is_asked_in_files: ClassVar[bool] = True
    architecture: ClassVar[str | None] = "ForMultipleChoice"

    main_metric: str = "accuracy"
    labels: tuple[str, ...] = ()

    def __post_init__(self):
        check_main_metric(self.main_metric, ("accuracy",))
        refuse_labels(self.labels, self.kind)
        columns = [name for name in (self.context, self.question, *self.choices, self.label) if name is not None]
        if not self.choices or len(set(columns)) < len(columns):
            raise ValueError(
                "Context, question, choices and label must be different columns, and `choices` at least one. "
                f"Received: {abridge(columns)}. Name each one once."
            )

    @classmethod
    def find_fields(cls, labels: Sequence[str], source: str) -> dict[str, Any]:
        """Return the columns of SWAG, which has no questions; a task with questions needs a `task.json`."""
        return {"question": None}

    def read(self, path: str | Path, max_examples: int | None = None, has_labels: bool = True) -> list[ChoiceExample]:
        """Read examples from a table or from JSON objects.

        If one field holds all choices, the file is a .jsonl, or a .txt or folder of .txt with one JSON object each. An
        object may have several questions about its context: a list of questions, a list of lists of choices, and a list
        of labels. A label is a number from 0, or a letter from A.

        Raises:
            FileNotFoundError: there is no such file or folder.
            ValueError: the file is malformed, or examples differ in their number of choices; the message names file
                and row.
        Source: the layouts of SWAG, github.com/rowanz/swagaf, and of RACE, cs.cmu.edu/~glai1/data/race.
        """
        label = self.label if has_labels else None
        columns = ChoiceColumns(self.context, self.question, self.choices, label)
        is_table = len(columns.choices) > 1
        rows = _read_table(path, columns, self.header) if is_table else _read_objects(Path(path), columns)
        examples = []
        for example in limit_examples(path, rows, max_examples):
            examples.append(example)
            count_choices([examples[0], example])
        return examples

    def make_example(self, item: Any) -> ChoiceExample:
        names = ("context", *(("question",) if self.question is not None else ()))
        if not isinstance(item, Mapping) or set(item) != {*names, "choices"} or isinstance(item["choices"], str):
            raise ValueError(
                f"An item for this task must be an object of {', '.join(names)} and choices, a list. "
                f"Received: {abridge([repr(item)])}. Give such an object."
            )
        texts = dict(zip(names, take_texts([item[name] for name in names], names), strict=True))
        choices = take_texts(list(item["choices"]), [f"choice {n}" for n, _ in enumerate(item["choices"])])
        return ChoiceExample(texts["context"], texts.get("question"), tuple(choices))

    def learn(self, examples: Sequence[ChoiceExample]) -> "MultipleChoice":
        labels_of(examples)
        return self

    def encode(self, tokenizer: Tokenizer, examples: Sequence[ChoiceExample], sequence_length: int) -> Features:
        joined, full_lengths = [], []
        for example in examples:
            context = tokenizer.encode(example.context)
            for choice in example.choices:
                second = choice if example.question is None else f"{example.question} {choice}"
                pair = (context, tokenizer.encode(second))
                joined.append(join_texts(tokenizer, *pair, sequence_length))
                full_lengths.append(count_joined(tokenizer, *pair))
        labels = [example.label for example in examples]
        return Features(
            token_ids=[token_ids for token_ids, _ in joined],
            first_lengths=np.array([first_length for _, first_length in joined], dtype=np.int32),
            examples=np.arange(len(examples), dtype=np.int32),
            labels={"logits": np.array(labels, dtype=np.int32)} if are_labelled(examples) else {},
            sequences_per_row=count_choices(examples),
            sequence_length=sequence_length,
            full_lengths=np.array(full_lengths, dtype=np.int64),
        )

    def decode(
        self, outputs: Mapping[str, Any], features: Features, examples: Sequence[ChoiceExample]
    ) -> list[Prediction]:
        rows = probabilities_of(outputs, features, features.sequences_per_row)
        return [_predict(example, row, row.argmax()) for example, row in zip(examples, rows, strict=True)]

    def score(self, examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        answers = np.array([prediction["label"] for prediction in predictions])
        metrics = classification_metrics(np.array(labels_of(examples)), answers, count_choices(examples))
        return {"accuracy": metrics["accuracy"]}

    def guess(self, training: Sequence[ChoiceExample], examples: Sequence[ChoiceExample]) -> list[Prediction]:
        """Predict the choice index that is most often correct in training, the first of ties."""
        labels = np.array(labels_of(training))
        shares = np.bincount(labels, minlength=count_choices(training)) / len(labels)
        return [_predict(example, shares, majority_class(labels)) for example in examples]

    def show(self, example: ChoiceExample) -> dict[str, Any]:
        question = {} if example.question is None else {"text_pair": example.question}
        gold = None if example.label is None else example.choices[example.label]
        return {"text": example.context, **question, "gold": gold}

    def review(self, example: ChoiceExample, prediction: Prediction) -> dict[str, Any] | None:
        if example.label == prediction["label"]:
            return None
        return self.show(example) | {"predicted": prediction["text"], "probability": prediction["probability"]}

    def make_measure(self, examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]) -> Measure:
        pairs = zip(labels_of(examples), predictions, strict=True)
        return mean_measure([label == prediction["label"] for label, prediction in pairs])


def _predict(example: ChoiceExample, probabilities: np.ndarray, chosen: int) -> Prediction:
    return {
        "label": int(chosen),
        "text": example.choices[chosen],
        "probability": float(probabilities[chosen]),
        "probabilities": probabilities.tolist(),
    }
