"""Inspect the columns of a table, and guess the kind of task in it."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from keras_bert_flow.tasks.formats.parquet_rows import list_columns, read_parquet
from keras_bert_flow.tasks.formats.rows import (
    GZIP,
    NAMED_FIELDS,
    TABLES,
    abridge,
    read_lines,
    read_whole_rows,
    spell_label,
)
from keras_bert_flow.tasks.formats.tables import NUMBER, class_names, require_text
from keras_bert_flow.text.corpus.inputs import PARQUET

LOOKED_AT_ROWS = 5000
TEXT_WORDS = 3.0  # minimum mean number of words for a column of texts
TEXT_CHARACTERS = 20.0  # the same, for scripts without spaces
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
        spelt: the values as text.
        distinct: number of different texts among these.
        first_blank: the index of the first value that is null, NaN or blank.
        has_lists: whether a value is a list.
        numbers: the values of a numeric column as floats, infinite beyond their range; empty for other columns.
        has_fractions: whether a number is not whole.
        words, characters: mean number of each in a text.
        is_text: whether it is a column of texts.
    """

    name: str
    values: tuple[Any, ...]
    spelt: Sequence[str]
    distinct: int
    first_blank: int | None
    has_lists: bool
    numbers: Sequence[float]
    has_fractions: bool
    words: float
    characters: float
    is_text: bool


def look_at_column(name: str, values: Iterable[Any]) -> Column:
    """Return what the values of a column have in common."""
    values = tuple(values)
    spelt = [value.strip() if isinstance(value, str) else str(spell_label(value)) for value in values]
    blanks = (row for row, value in enumerate(values) if value is None or value != value or not str(value).strip())
    # As `float` reads them: an integer of JSON may be too large to be converted itself
    digits = [
        value.strip() if isinstance(value, str) else str(int(value) if isinstance(value, bool) else value)
        for value in values
        if isinstance(value, int | float | str)
    ]
    is_numeric = len(digits) == len(values) and all(map(NUMBER.fullmatch, digits))
    numbers = [float(digit) for digit in digits] if is_numeric else ()
    words = sum(len(text.split()) for text in spelt) / max(1, len(values))
    characters = sum(map(len, spelt)) / max(1, len(values))
    distinct, has_lists = len({*spelt}), any(isinstance(value, list) for value in values)
    is_long = words >= TEXT_WORDS or characters >= TEXT_CHARACTERS
    return Column(
        name=name,
        values=values,
        spelt=spelt,
        distinct=distinct,
        first_blank=next(blanks, None),
        has_lists=has_lists,
        numbers=numbers,
        has_fractions=any(math.isfinite(number) and number % 1 for number in numbers),
        words=words,
        characters=characters,
        is_text=is_long and not is_numeric and not has_lists and distinct > 1,
    )


@dataclass(frozen=True)
class Table:
    """A sample of a table in a file.

    Attributes:
        has_header: whether the first line names the columns; always False for .jsonl and .parquet, whose fields have
            names.
        header_reason: the reason for `has_header`.
        rows: lines of the sampled rows, or rows of a .parquet, from 1.
        unread: names of the columns of a .parquet whose types cannot be read.
    """

    path: str
    columns: tuple[Column, ...]
    has_header: bool
    header_reason: str
    rows: Sequence[int]
    unread: Sequence[str] = ()

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
        _require_readable(str(path), list_columns(str(path)) if str(path).endswith(PARQUET) else [])
        raise ValueError(f"A table must hold at least one example. Received: {path}, which holds none.")
    if isinstance(rows[0][1], dict):
        fields = [fields for _, fields in rows]
        names = dict.fromkeys(name for field in fields for name in field)
        columns = tuple(look_at_column(name, (field.get(name) for field in fields)) for name in names)
        named = list_columns(str(path)) if str(path).endswith(PARQUET) else []
        unread = [name for name in named if name not in names]
        return Table(str(path), columns, False, "its fields have names", [number for number, _ in rows], unread)
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
        look_at_column(name, (row[place] for row in body)) for place, name in enumerate(headings) if name or place
    )
    return Table(str(path), columns, has_header, reason, [number for number, _ in rows[has_header:]])


def find_header(first: Sequence[str], rest: Sequence[Sequence[str]]) -> tuple[bool, str]:
    """Return whether the first line is a header, and the reason."""
    known = [cell for cell in first if cell.lower() in KNOWN_NAMES]
    if len(first) > 1 and not first[0] and all(first[1:]):
        index = [row[0] for row in rest]
        if index and all(cell.strip().isdecimal() for cell in index) and len({*index}) == len(index):
            return True, "its first cell is empty above row numbers: the index that pandas writes"
    is_named = len(set(first)) == len(first) and all(first)
    if known and is_named:
        return True, f"the first line has the name {known[0]!r}"
    if not rest or not is_named:
        return False, "the first line has no name that is known, or the same cell twice, or an empty one"
    for place, cell in enumerate(first):
        below = look_at_column(cell, (row[place] for row in rest))
        if below.numbers and not NUMBER.fullmatch(cell):
            return True, f"{cell!r} stands above numbers"
        counts = Counter(below.spelt)
        if cell not in counts and len(counts) <= 20 and min(counts.values()) >= 2 and len(cell.split()) <= 3:
            return True, f"{cell!r} stands above values that repeat, and is none of them"
    return False, "the first line looks like the others"


# Guess the kind of task in a file and the columns it uses, with a reason for each guess.

SEPARATORS = ("|", ";", ",")
MOST_CLASSES = 200
FEW_VALUES = 20  # from this number of values on, integers are a scale rather than classes
ALIKE = 3.0  # maximum ratio of the lengths of two texts of a pair
# Also of schemes in another spelling, such as b_per, which `learn` refuses by name.
TAG = re.compile(r"[O0]|[BIESLUM][-_:/.|=+]\S+|\S+[-_:/.|=+][BIESLUM]", re.IGNORECASE)
TEST_NAMES = ("testb", "test")
DEV_NAMES = ("dev", "validation", "valid", "val", "testa", "test")


@dataclass(frozen=True)
class DraftedTask:
    """The guessed settings of a task.

    Attributes:
        kind: kind of task in `config.finetuning`.
        settings: non-default settings.
        reasons: setting → reason for the guess and how to change it, for a comment.
        remarks: what was found but not used.
        lengths: number of words of each sampled example, of both texts of a pair together.
    """

    kind: str
    settings: Mapping[str, Any]
    reasons: Mapping[str, str]
    remarks: tuple[str, ...] = ()
    lengths: tuple[int, ...] = ()


def draft_task(path: str | Path) -> DraftedTask:
    """Guess the settings of a task from its file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the content is not recognised; the message says what was found.
    """
    name = str(path)
    for suffix in GZIP:
        name = name.removesuffix(suffix)
    if not Path(path).is_file():
        raise FileNotFoundError(f"A task must be a file. Received: {path}, which is not one. Check the path.")
    if name.endswith(".json"):
        return DraftedTask("question_answering", {}, {"kind": "a .json is taken for SQuAD's"})
    if not name.endswith(TABLES):
        return _draft_tagging(path)
    table = look_at_table(path)
    names = {column.name for column in table.columns}
    if name.endswith(".jsonl") and {"words", "tags"} <= names:
        return DraftedTask("token_classification", {}, {"kind": "the fields `words` and `tags`"})
    if name.endswith(".jsonl") and {"question", "context", "answers"} <= names:
        return DraftedTask("question_answering", {}, {"kind": "the fields `question`, `context` and `answers`"})
    return _draft_texts(table)


def find_beside(train: Path, names: Sequence[str] = DEV_NAMES) -> Path | None:
    """Return the file next to a training table that is its dev set, judging by the name; None if there is none.

    Args:
        names: what stands in its name where the training table has `train`.
    """
    match = re.search("train", train.name)
    if not match:
        return None
    candidates = (train.with_name(train.name.replace("train", name, 1)) for name in names)
    return next((path for path in candidates if path.is_file()), None)


def _draft_tagging(path: str | Path) -> DraftedTask:
    lines = [line for _, line in islice(read_lines(path), 5000)]
    rows = [line.split() for line in lines if line.strip() and not line.startswith("-DOCSTART-")]
    tags = [row[-1] for row in rows if len(row) > 1]
    has_ends = any(not line.strip() for line in lines)
    if not rows or len(tags) < len(rows) or not has_ends or not all(map(TAG.fullmatch, tags)):
        raise ValueError(
            f"A task must be a table (.tsv, .csv, .jsonl, .parquet), SQuAD's .json, or words with tags, a word a line. "
            f"Received: {path}, which is none of these. Rename it, or copy a file of `kbf configs list`."
        )
    reasons = {
        "kind": "a word a line with a tag such as B-PER at its end, and blank lines between sentences",
        "tag_column": f"the last of {len(rows[0])}; another is its number from 0",
    }
    return DraftedTask("token_classification", {"word_column": 0, "tag_column": "last"}, reasons)


def _draft_texts(table: Table) -> DraftedTask:
    settings: dict[str, Any] = {}
    reasons: dict[str, str] = {}
    if not table.path.removesuffix(".gz").endswith(NAMED_FIELDS):
        settings["header"], reasons["header"] = table.has_header, table.header_reason
    binary = [column for column in table.columns if {*column.spelt} == {"0", "1"}]
    several = [] if len(binary) < 3 or any(map(table.find, LABEL_NAMES)) else binary
    label = None if several else _find_label(table)
    texts = [column for column in table.columns if column.is_text and column is not label]
    text, pair, why = _find_texts(table, texts)
    settings["text"], reasons["text"] = text.name, why
    if pair:
        settings["text_pair"] = pair.name
        reasons["text_pair"] = "the second text of a pair; leave it out for a single text"
    if several:
        kind = "multi_label"
        settings["label_columns"] = [column.name for column in several]
        reasons["kind"] = f"{len(several)} columns of 0 and 1"
        reasons["label_columns"] = "a column for each label"
    elif label is None:
        raise _without_labels(table)
    else:
        settings["label"] = label.name
        repeat = f"{label.distinct} values that repeat; another column: its name or number"
        reasons["label"] = "by its name" if label.name.lower() in LABEL_NAMES else repeat
        kind, more, reasons["kind"] = _find_kind(label)
        settings |= more
    used = {name for value in settings.values() for name in (value if isinstance(value, list) else [value])}
    unused = [column.name for column in table.columns if column.name not in used]
    remarks = (f"Not used: {', '.join(unused[:20])}.",) if unused else ()
    parts = [column.spelt for column in (text, pair) if column]
    lengths = tuple(sum(len(part.split()) for part in example) for example in zip(*parts, strict=True))
    return DraftedTask(kind, settings, reasons, remarks, lengths)


def _find_label(table: Table) -> Column | None:
    """Return the column of labels: by its name, else by how its values repeat.

    Raises:
        ValueError: a column is named `label`, or has no rival and another name of labels, but cannot be one.
    """
    named = [column for name in LABEL_NAMES if (column := table.find(name))]
    usable = [  # each row has a label, but for a text that may have none of several
        column
        for column in named
        if column.distinct > 1 and (column.first_blank is None or _find_separator(column) is not None)
    ]
    if usable and usable[0].name.lower() == LABEL_NAMES[0]:
        return usable[0]
    _require_readable(table.path, table.unread, LABEL_NAMES[:1])
    if named and named[0].name.lower() == LABEL_NAMES[0]:
        _require_labels(table, named[0])
    if usable:
        return usable[0]
    most = min(MOST_CLASSES, max(2, len(table.rows) // 2))
    repeating = [
        column
        for column in table.columns
        if column.first_blank is None and not column.is_text and 2 <= column.distinct <= most
    ]
    if repeating:
        return min(repeating, key=lambda column: column.distinct)
    lists = [column for column in table.columns if column.has_lists]
    fractions = [column for column in table.columns if column.has_fractions]
    if not lists + fractions:
        _require_readable(table.path, table.unread, LABEL_NAMES)
        for column in named:
            _require_labels(table, column)
    return next(iter(lists + fractions), None)


def _require_readable(path: str, columns: Sequence[str], names: Sequence[str] = (), num_texts: int = 0) -> None:
    """Raise ValueError for the first of some columns of a .parquet if its type is not one of a task.

    Args:
        names: of the columns that count, in lower case; all if there are none.
    """
    for name in columns:
        if not names or name.lower() in names:
            next(read_parquet(path, [name], num_texts), None)


def _require_labels(table: Table, column: Column) -> None:
    """Raise the error of reading a column of labels with a blank or a single class."""
    if column.first_blank is not None and _find_separator(column) is None:
        place = f"{table.path}, row {table.rows[column.first_blank]}"
        require_text(place, column.name, column.values[column.first_blank])
    class_names(column.spelt, f"{table.path}, column {column.name!r}")


def _without_labels(table: Table) -> ValueError:
    """Return the error of a table without a column of labels: why each is not taken for one."""
    seen = []
    for column in table.columns:
        fault = "texts" if column.is_text else f"{column.distinct} values in {len(table.rows)} rows"
        if column.first_blank is not None:
            fault = f"blank in row {table.rows[column.first_blank]}"
        elif column.distinct == 1:
            fault = "the same in each row"
        seen.append(f"{column.name} ({fault})")
    return ValueError(
        f"A table must have a column of labels. Received: {table.path}, with {abridge(seen, width=100)}. Name it "
        "`label` in a header."
    )


def _find_texts(table: Table, texts: list[Column]) -> tuple[Column, Column | None, str]:
    for first, second in PAIR_NAMES:
        one, other = table.find(first), table.find(second)
        if one and other:
            return one, other, f"{first} and {second} are the names of a pair"
    named = [column for name in TEXT_NAMES if (column := table.find(name)) and not column.numbers]
    if not named or named[0].name.lower() != TEXT_NAMES[0]:
        _require_readable(table.path, table.unread, TEXT_NAMES[:1], num_texts=1)
    if named:
        return named[0], None, "by its name"
    if not texts:
        _require_readable(table.path, table.unread, TEXT_NAMES, num_texts=1)
        raise ValueError(
            f"A table must have a column of texts. Received: {table.path}, where no column has {TEXT_WORDS:.0f} "
            "words a row. Name it `text` in a header."
        )
    longest = max(texts, key=lambda column: column.characters)
    alike = [column for column in texts if longest.characters <= ALIKE * column.characters]
    if len(alike) == 2 and not table.has_header:
        return alike[0], alike[1], "the first of two columns of texts of similar length"
    return longest, None, f"the longest texts: {longest.words:.1f} words on average"


def _find_kind(label: Column) -> tuple[str, dict[str, Any], str]:
    """Return the kind of task that the labels imply, further settings, and the reason."""
    if label.has_lists:
        return "multi_label", {}, "lists of labels"
    if label.numbers and label.distinct > (2 if label.has_fractions else FEW_VALUES):
        reason = f"{label.distinct} different numbers from {min(label.numbers):g} to {max(label.numbers):g}"
        return "regression", {}, reason
    if separator := _find_separator(label):
        several = sum(separator in value for value in label.spelt)
        reason = f"{several} of {len(label.values)} labels have a {separator!r} in them: several labels of one text"
        return "multi_label", {"separator": separator}, reason
    classes = abridge([repr(name) for name, _ in Counter(label.spelt).most_common(6)])
    return "classification", {}, f"{label.distinct} classes: {classes}{', ...' if label.distinct > 6 else ''}"


def _find_separator(label: Column) -> str | None:
    """Return the separator of several labels per text: splitting at it leaves fewer distinct labels than values."""
    values = [value for value in label.spelt if value]
    for separator in SEPARATORS:
        parts = {part.strip() for value in values for part in value.split(separator)}
        several = sum(separator in value for value in values)
        if several >= 0.05 * len(values) and len(parts) < len(set(values)) and len(parts) <= MOST_CLASSES:
            return separator if "" not in parts else None
    return None
