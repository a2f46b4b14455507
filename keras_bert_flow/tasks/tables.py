"""Read a task's table: texts, perhaps second texts, and labels, from .tsv, .csv or .jsonl, also .gz."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_bert_flow.tasks.rows import abridge, read_rows

# At most 18 digits: what int64 holds, and far below the length at which int() refuses a text.
INTEGER = re.compile(r"-?[0-9]{1,18}")


@dataclass(frozen=True)
class TaskTable:
    """Examples of a task, in the order of the file.

    Attributes:
        path: where the table was read, for messages.
        texts: text of each example, as written.
        text_pairs: second text of each example; None where the task has one text.
        labels: name of each example's class, without surrounding blanks.
        rows: line of the file on which each example starts, from 1; empty where no file was read.
    """

    path: str
    texts: tuple[str, ...]
    text_pairs: tuple[str, ...] | None
    labels: tuple[str, ...]
    rows: tuple[int, ...] = ()


def read_table(
    path: str | Path,
    text: str = "text",
    text_pair: str | None = None,
    label: str = "label",
    header: bool = True,
    max_examples: int | None = None,
) -> TaskTable:
    """Read a table of texts with labels.

    .tsv is split on the tab and knows no quoting (GLUE's files hold bare quotes); .csv is quoted as in RFC 4180; each
    line of .jsonl is an object with named fields, whose label may also be a number or a boolean. UTF-8, with or without
    a byte order mark. Blank lines are skipped.

    Args:
        path: the file.
        text: column of the text: its name, or where `header` is False its number from 0.
        text_pair: column of a second text.
        label: column of the label.
        header: the first line of a .tsv or .csv names the columns. A .jsonl always names its own.
        max_examples: read only the first so many examples.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file, or a row of it, is not such a table; the message names the row.
    """
    columns = [column for column in (text, text_pair, label) if column is not None]
    if len(set(columns)) < len(columns):
        raise ValueError(
            f"Texts and label must be different columns. Received: {', '.join(columns)}. Name each one once."
        )
    if max_examples is not None and max_examples < 1:
        raise ValueError(
            f"`max_examples` must be at least 1. Received: {max_examples}. Leave it out to read every row."
        )
    examples = []
    for number, values in read_rows(path, columns, header):
        _require_filled(f"{path}, row {number}", columns, values)
        examples.append((number, *values[:-1], values[-1].strip()))
        if len(examples) == max_examples:
            break
    if not examples:
        raise ValueError(f"A table must hold at least one example. Received: {path}, which holds none.")
    rows, texts, *pairs, labels = zip(*examples, strict=True)
    return TaskTable(str(path), texts, pairs[0] if pairs else None, labels, rows)


def label_names(train: TaskTable) -> tuple[str, ...]:
    """Return the classes of a training table, sorted: by value where every name is an integer, else by spelling.

    Raises:
        ValueError: the table has one class only, so there is nothing to learn.
    """
    names = sorted(set(train.labels))
    if len(names) < 2:
        raise ValueError(
            f"A training table must have at least two labels. Received: {train.path}, where all are {names[0]!r}. "
            "Check the label column, or read more rows."
        )
    if all(INTEGER.fullmatch(name) for name in names):
        names.sort(key=int)
    return tuple(names)


def label_ids(table: TaskTable, names: tuple[str, ...]) -> np.ndarray:
    """Number the labels of a table by their place in `names`.

    Returns:
        int32, (examples,).
    Raises:
        ValueError: a label is not among `names`: the training table never had it.
    """
    numbers = {name: number for number, name in enumerate(names)}
    for index, name in enumerate(table.labels):
        if name not in numbers:
            row = table.rows[index] if table.rows else index + 1
            raise ValueError(
                f"{table.path}, row {row}: a label must be one that the training table has. Received: {name!r}. "
                f"Known labels: {abridge(names)}. Correct it, or add such examples to the training table."
            )
    return np.array([numbers[name] for name in table.labels], dtype=np.int32)


def _require_filled(place: str, columns: list[str], values: list) -> None:
    for column, value in zip(columns, values, strict=True):
        if not isinstance(value, str) or not value.strip():
            received = abridge([repr(value)])
            raise ValueError(
                f"{place}: column {column!r} must hold text. Received: {received}. Fill it or drop the row."
            )
        try:
            value.encode()
        except UnicodeEncodeError:  # JSON can spell half a surrogate pair, which no tokenizer takes
            received = abridge([ascii(value)])
            raise ValueError(
                f"{place}: column {column!r} must be Unicode. Received: {received}. Correct the row."
            ) from None
