"""Read multiple-choice questions: tables as in SWAG, or JSON objects as in RACE with one or more questions each."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_uppercase
from typing import Any

from keras_bert_flow.outputs import walk_input
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


def read_choices(
    path: str | Path, columns: ChoiceColumns, header: bool, max_examples: int | None
) -> list[ChoiceExample]:
    """Read multiple-choice examples from a table or from JSON objects.

    If one field holds all choices, the file is a .jsonl, or a .txt or folder of .txt with one JSON object each. An
    object may have several questions about its context: a list of questions, a list of lists of choices, and a list of
    labels. A label is a number from 0, or a letter from A.

    Raises:
        FileNotFoundError: there is no such file or folder.
        ValueError: the file is malformed, or examples differ in their number of choices; the message names file and
            row.
    Source: the layouts of SWAG, github.com/rowanz/swagaf, and of RACE, cs.cmu.edu/~glai1/data/race.
    """
    rows = _read_table(path, columns, header) if len(columns.choices) > 1 else _read_objects(Path(path), columns)
    examples = []
    for example in limit_examples(path, rows, max_examples):
        examples.append(example)
        count_choices([examples[0], example])
    return examples


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
