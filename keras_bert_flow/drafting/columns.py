"""Inspect the columns of a table: which hold texts, which hold labels, and whether there is a header."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from keras_bert_flow.tasks.formats.rows import read_whole_rows

LOOKED_AT_ROWS = 5000
TEXT_WORDS = 3.0  # minimum mean number of words for a column of texts
TEXT_CHARACTERS = 20.0  # the same, for scripts without spaces
NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
LABEL_NAMES = (
    *("label", "labels", "class", "category", "categories", "target", "score", "similarity", "gold_label", "sentiment"),
    *("rating", "stars", "grade", "topic", "intent", "y", "is_duplicate", "quality", "tags"),
)
TEXT_NAMES = ("text", "sentence", "review", "content", "body", "comment", "message", "document", "utterance", "tweet")
PAIR_NAMES = (
    *(("sentence1", "sentence2"), ("question1", "question2"), ("premise", "hypothesis"), ("text", "text_pair")),
    *(("question", "sentence"), ("text1", "text2"), ("text_a", "text_b"), ("query", "passage")),
    ("#1 string", "#2 string"),
)
OTHER_NAMES = ("id", "idx", "index", "guid", "pairid", "title", "date", "source", "genre", "filename", "language")
KNOWN_NAMES = {*LABEL_NAMES, *TEXT_NAMES, *OTHER_NAMES, *(name for pair in PAIR_NAMES for name in pair)}


@dataclass(frozen=True)
class Column:
    """A column of a table, as seen in its first rows.

    Attributes:
        name: name in the header, or the column number from 0.
        values: values of the sampled rows; in .jsonl and .parquet they may have any type.
    """

    name: str
    values: tuple[Any, ...]

    @property
    def spelt(self) -> list[str]:
        return [value.strip() if isinstance(value, str) else str(value) for value in self.values]

    @property
    def distinct(self) -> int:
        return len(set(self.spelt))

    @property
    def has_blanks(self) -> bool:
        return any(value in ("", None) or not str(value).strip() for value in self.values)

    @property
    def has_lists(self) -> bool:
        return any(isinstance(value, list) for value in self.values)

    @property
    def is_numeric(self) -> bool:
        return bool(self.values) and all(
            isinstance(value, int | float) or (isinstance(value, str) and NUMBER.fullmatch(value.strip()))
            for value in self.values
        )

    @property
    def has_fractions(self) -> bool:
        return self.is_numeric and any(not float(value).is_integer() for value in self.values)

    @property
    def is_binary(self) -> bool:
        return set(self.spelt) == {"0", "1"}

    @property
    def words(self) -> float:
        return sum(len(text.split()) for text in self.spelt) / max(1, len(self.values))

    @property
    def characters(self) -> float:
        return sum(map(len, self.spelt)) / max(1, len(self.values))

    @property
    def is_text(self) -> bool:
        is_long = self.words >= TEXT_WORDS or self.characters >= TEXT_CHARACTERS
        return is_long and not self.is_numeric and not self.has_lists and self.distinct > 1


@dataclass(frozen=True)
class Table:
    """A sample of a table in a file.

    Attributes:
        has_header: whether the first line names the columns; always False for .jsonl and .parquet, whose fields have
            names.
        header_reason: the reason for `has_header`.
        rows: number of sampled rows.
    """

    path: str
    columns: tuple[Column, ...]
    has_header: bool
    header_reason: str
    rows: int

    def find(self, name: str) -> Column | None:
        """Return the column with a name, ignoring case."""
        return next((column for column in self.columns if column.name.lower() == name.lower()), None)


def look_at_table(path: str | Path) -> Table:
    """Read the first rows of a .tsv, .csv, .jsonl or .parquet.

    Raises:
        FileNotFoundError, ValueError: it cannot be read, its rows differ in number of columns, or it has no rows.
    """
    rows: list[tuple[int, Any]] = list(islice(read_whole_rows(path), LOOKED_AT_ROWS + 1))
    if not rows:
        raise ValueError(f"A table must hold at least one example. Received: {path}, which holds none.")
    if isinstance(rows[0][1], dict):
        fields = [fields for _, fields in rows]
        names = dict.fromkeys(name for field in fields for name in field)
        columns = tuple(Column(name, tuple(field.get(name) for field in fields)) for name in names)
        return Table(str(path), columns, False, "its fields have names", len(rows))
    width = len(rows[0][1])
    for number, values in rows:
        if len(values) != width:
            raise ValueError(
                f"{path}, row {number}: a row must have as many columns as the first one. Received: {len(values)}, "
                f"not {width}. Look for a missing or extra separator."
            )
    first, rest = [cell.strip() for cell in rows[0][1]], [values for _, values in rows[1:]]
    has_header, reason = find_header(first, rest)
    headings = first if has_header else [str(number) for number in range(width)]
    body = rest if has_header else [rows[0][1], *rest]
    columns = tuple(
        Column(name, tuple(row[place] for row in body)) for place, name in enumerate(headings) if name or place
    )
    return Table(str(path), columns, has_header, reason, len(body))


def _is_index(cells: Sequence[str]) -> bool:
    numbers = [int(cell) if cell.strip().isdecimal() else -1 for cell in cells]
    return bool(numbers) and min(numbers) >= 0 and len(set(numbers)) == len(numbers)


def find_header(first: Sequence[str], rest: Sequence[Sequence[str]]) -> tuple[bool, str]:
    """Return whether the first line is a header, and the reason."""
    known = [cell for cell in first if cell.lower() in KNOWN_NAMES]
    if len(first) > 1 and not first[0] and all(first[1:]) and _is_index([row[0] for row in rest]):
        return True, "its first cell is empty above row numbers: the index that pandas writes"
    is_named = len(set(first)) == len(first) and all(first)
    if known and is_named:
        return True, f"the first line has the name {known[0]!r}"
    if not rest or not is_named:
        return False, "the first line has no name that is known, or the same cell twice, or an empty one"
    for place, cell in enumerate(first):
        below = Column(cell, tuple(row[place] for row in rest))
        if below.is_numeric and not NUMBER.fullmatch(cell):
            return True, f"{cell!r} stands above numbers"
        counts = Counter(below.spelt)
        if cell not in counts and len(counts) <= 20 and min(counts.values()) >= 2 and len(cell.split()) <= 3:
            return True, f"{cell!r} stands above values that repeat, and is none of them"
    return False, "the first line looks like the others"
