"""Split a table into a train, a dev and a test table, so that no text is in two of them."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.artifacts import write_atomically
from keras_bert_flow.tasks.core.repeats import identify
from keras_bert_flow.tasks.formats.bounded_reading import read_whole
from keras_bert_flow.tasks.formats.parquet_rows import take_rows
from keras_bert_flow.tasks.formats.rows import TABLES, read_lines, read_whole_rows
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


def split_table(table: Path, parts: Sequence[Path], header: bool, examples: Sequence[Any]) -> list[int]:
    """Write every tenth text to the second part and another tenth to the third, if any; return the rows of each.

    Rows with the same texts, apart from case and blanks, are in the same part.

    Args:
        examples: the rows as read by the task.
    Raises:
        FileExistsError: a part exists already.
        ValueError: the table has too few texts.
    """
    for part in parts:
        if part.exists():
            raise FileExistsError(
                f"A part of the table must be a new file. Received: {part}, which exists. Give --dev."
            )
    is_parquet = parts[0].suffix == PARQUET
    whole = [] if is_parquet else _read_csv(table) if parts[0].suffix == ".csv" else _read_plain(table)
    first = whole[:1] if header else []
    rows = range(len(examples)) if is_parquet else whole[len(first) :]
    numbers: dict[bytes, int] = {}  # of distinct texts, from 1
    texts = [numbers.setdefault(identify(example), len(numbers) + 1) for example in examples]
    if len(numbers) < LEAST_TEXTS:
        raise ValueError(
            f"A table that is to be divided must have at least {LEAST_TEXTS} different texts. Received: {table}, with "
            f"{len(numbers)} in {len(rows)} rows. Give --dev, or more rows."
        )
    chosen: list[list] = [[] for _ in parts]
    for row, text in zip(rows, texts, strict=True):
        place = {0: 1, EVERY // 2: 2}.get(text % EVERY, 0)
        chosen[place if place < len(parts) else 0].append(row)
    for part, lines in zip(parts, chosen, strict=True):
        write_atomically(part, take_rows(str(table), lines) if is_parquet else "".join([*first, *lines]).encode())
    return [len(lines) for lines in chosen]


def count_rows(table: Path, header: bool) -> int:
    """Return the number of rows of a table, of questions in SQuAD's .json, or of blank lines in a tagged file."""
    if table.name.removesuffix(".gz").endswith(TABLES):
        return max(0, sum(1 for _ in read_whole_rows(table)) - header)
    if table.name.removesuffix(".gz").endswith(".json"):  # SQuAD's format, with one key `question` per question
        return read_whole(str(table)).count(b'"question"')
    return sum(1 for _, line in read_lines(table) if not line.strip())


def _read_plain(table: Path) -> list[str]:
    return [f"{line}\n" for _, line in read_lines(table) if line.strip(" ")]


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
