"""Guess the kind of task in a file and the columns it uses, with a reason for each guess."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from keras_bert_flow.drafting.columns import (
    LABEL_NAMES,
    PAIR_NAMES,
    TEXT_NAMES,
    TEXT_WORDS,
    Column,
    Table,
    look_at_table,
)
from keras_bert_flow.tasks.formats.bounded_reading import GZIP
from keras_bert_flow.tasks.formats.rows import NAMED_FIELDS, TABLES, read_lines

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
        kind: kind of task in `config.tasks`.
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
    several = _find_label_columns(table)
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
        seen = ", ".join(f"{column.name} ({column.distinct} values)" for column in table.columns)
        raise ValueError(
            f"A table must have a column of labels. Received: {table.path}, with {seen}, none of which repeats. "
            "Name it `label` in a header."
        )
    else:
        settings["label"] = label.name
        reasons["label"] = _describe_label(label)
        kind, more, reasons["kind"] = _find_kind(label)
        settings |= more
    used = {name for value in settings.values() for name in (value if isinstance(value, list) else [value])}
    unused = [column.name for column in table.columns if column.name not in used]
    remarks = (f"Not used: {', '.join(unused[:20])}.",) if unused else ()
    parts = [column.spelt for column in (text, pair) if column]
    lengths = tuple(sum(len(part.split()) for part in example) for example in zip(*parts, strict=True))
    return DraftedTask(kind, settings, reasons, remarks, lengths)


def _find_label_columns(table: Table) -> list[Column]:
    binary = [column for column in table.columns if column.is_binary]
    has_label = any(table.find(name) for name in LABEL_NAMES)
    return binary if len(binary) >= 3 and not has_label else []


def _find_label(table: Table) -> Column | None:
    for name in LABEL_NAMES:
        column = table.find(name)
        if column and column.distinct > 1 and (not column.has_blanks or _find_separator(column)):
            return column
    repeating = [
        column
        for column in table.columns
        if not column.has_blanks
        and not column.is_text
        and 2 <= column.distinct <= min(MOST_CLASSES, max(2, table.rows // 2))
    ]
    if repeating:
        return min(repeating, key=lambda column: column.distinct)
    lists = [column for column in table.columns if column.has_lists]
    fractions = [column for column in table.columns if column.has_fractions]
    return next(iter(lists + fractions), None)


def _find_texts(table: Table, texts: list[Column]) -> tuple[Column, Column | None, str]:
    for first, second in PAIR_NAMES:
        one, other = table.find(first), table.find(second)
        if one and other:
            return one, other, f"{first} and {second} are the names of a pair"
    named = [column for name in TEXT_NAMES if (column := table.find(name)) and not column.is_numeric]
    if named:
        return named[0], None, "by its name"
    if not texts:
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
    if label.has_fractions or (label.is_numeric and label.distinct > FEW_VALUES):
        numbers = [float(value) for value in label.values]
        return "regression", {}, f"numbers from {min(numbers):g} to {max(numbers):g}, of which many differ"
    if separator := _find_separator(label):
        several = sum(separator in value for value in label.spelt)
        reason = f"{several} of {len(label.values)} labels have a {separator!r} in them: several labels of one text"
        return "multi_label", {"separator": separator}, reason
    classes = ", ".join(repr(name) for name, _ in Counter(label.spelt).most_common(6))
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


def _describe_label(label: Column) -> str:
    by_name = label.name.lower() in LABEL_NAMES
    return "by its name" if by_name else f"{label.distinct} values that repeat; another column: its name or number"
