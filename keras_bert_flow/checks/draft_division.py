"""Split a table into a train, a dev and a test table, so that no text is in two of them."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.results.artifacts import write_atomically
from keras_bert_flow.tasks.core.texts import identify
from keras_bert_flow.tasks.formats.parquet_rows import take_rows
from keras_bert_flow.tasks.formats.rows import JSON_LINES, TABLES, read_lines, read_whole, read_whole_rows
from keras_bert_flow.text.corpus.inputs import PARQUET

EVERY = 10  # every tenth text goes to the dev table, and every tenth of a large table to the test table
LEAST_TEXTS, LEAST_FOR_TEST = 20, 500


def name_parts(table: Path, output: Path, examples: Sequence[Any], with_test: bool) -> list[Path]:
    """Return the paths of the parts, next to the configuration: train, dev and, of a large table, test.

    Raises:
        ValueError: the file cannot be split by rows.
    """
    ending = Path(table.name.removesuffix(".gz")).suffix
    if ending not in TABLES:
        raise ValueError(
            f"There must be a file to measure on. Received: {table} alone, which is not divided by rows. Give --dev."
        )
    has_test = with_test and len({*map(identify, examples)}) >= LEAST_FOR_TEST
    names = ("train", "dev", *(["test"] if has_test else []))
    return [output.with_name(f"{output.stem}-{name}{ending}") for name in names]


def divide_rows(table: Path, parts: Sequence[Path], task: Any, examples: Sequence[Any]) -> list[list[int]]:
    """Choose a tenth of the texts for the second part and another tenth for the third, if any; the rest is the first.

    These are every tenth text in the order of their classes, and of the table within a class, so that the parts have
    the same shares of classes whatever the order of the table. Rows with the same texts, apart from case and blanks,
    are in the same part, and a text stays in the first part where that would otherwise lack one of its classes.

    Args:
        task: the task that read the table.
        examples: its rows.
    Returns:
        Indices of the rows of each part, from 0.
    Raises:
        FileExistsError: a part exists already.
        ValueError: the table has too few texts, or too few of each class, or the task cannot learn from the first part.
    """
    for part in parts:
        if part.exists():
            raise FileExistsError(
                f"A part of the table must be a new file. Received: {part}, which exists. Give --dev."
            )
    rows_of: dict[bytes, list[int]] = {}
    for row, example in enumerate(examples):
        rows_of.setdefault(identify(example), []).append(row)
    if len(rows_of) < LEAST_TEXTS:
        raise ValueError(
            f"A table that is to be divided must have at least {LEAST_TEXTS} different texts. Received: {table}, with "
            f"{len(rows_of)} in {len(examples)} rows. Give --dev, or more rows."
        )
    chosen: list[list[int]] = [[] for _ in parts]
    drawn: list[tuple[int, list[int]]] = []
    texts = sorted(rows_of.values(), key=lambda rows: tuple(task.names_of(examples[rows[0]])))
    for text, rows in enumerate(texts, 1):
        place = {0: 1, EVERY // 2: 2}.get(text % EVERY, 0)
        if 0 < place < len(parts):
            drawn.append((place, rows))
        else:
            chosen[0] += rows
    learnt = {name for row in chosen[0] for name in task.names_of(examples[row])}
    for place, rows in drawn:
        names = {name for row in rows for name in task.names_of(examples[row])}
        chosen[place if names <= learnt else 0] += rows
        learnt |= names
    if not all(chosen):
        raise ValueError(
            f"A table that is to be divided must have several texts of most classes. Received: {table}, with "
            f"{len(learnt):,} classes in {len(examples):,} rows, of which nothing is left to measure on if training "
            "has a text of each class. Give --dev, merge rare classes, or look whether another column has the labels."
        )
    task.learn([examples[row] for row in sorted(chosen[0])])
    return [sorted(rows) for rows in chosen]


def write_parts(table: Path, parts: Sequence[Path], header: bool, chosen: Sequence[Sequence[int]]) -> None:
    """Write the rows that `divide_rows` chose for each part."""
    if parts[0].suffix == PARQUET:
        for part, rows in zip(parts, chosen, strict=True):
            write_atomically(part, take_rows(str(table), rows))
        return
    whole = _read_csv(table) if parts[0].suffix == ".csv" else _read_plain(table)
    first, lines = whole[:header], whole[header:]
    for part, rows in zip(parts, chosen, strict=True):
        write_atomically(part, "".join([*first, *(lines[row] for row in rows)]).encode())


def count_rows(table: Path, header: bool) -> int:
    """Return the number of rows of a table, of questions in SQuAD's .json, or of blank lines in a tagged file."""
    if table.name.removesuffix(".gz").endswith(TABLES):
        return max(0, sum(1 for _ in read_whole_rows(table)) - header)
    if table.name.removesuffix(".gz").endswith(".json"):  # SQuAD's format, with one key `question` per question
        return read_whole(str(table)).count(b'"question"')
    return sum(1 for _, line in read_lines(table) if not line.strip())


def _read_plain(table: Path) -> list[str]:
    """Return the lines of a .tsv or .jsonl that are rows."""
    blanks = None if JSON_LINES in table.suffixes else " "  # a line of one tab is a row of a .tsv
    return [f"{line}\n" for _, line in read_lines(table) if line.strip(blanks)]


def _read_csv(table: Path) -> list[str]:
    """Return the rows with new quoting, since a row may span several lines."""
    written: list[str] = []

    class Lines:
        def write(self, text: str) -> None:
            written.append(text)

    writer = csv.writer(Lines(), lineterminator="\n")
    for _, row in read_whole_rows(table):
        writer.writerow(row)
    return written
