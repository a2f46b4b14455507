"""Read a table of texts or text pairs with labels or scores, in GLUE's layouts as well."""

import logging
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.tasks.formats.rows import Row, abridge, read_rows

HEADINGS = {"label", "labels", "class", "category", "target", "sentiment", "gold_label", "topic", "intent", "rating"}
MANY_CLASSES = 10
# At most 18 digits, which fit in int64, and are far fewer than int() rejects.
INTEGER = re.compile(r"-?[0-9]{1,18}")
# What float() also accepts, such as 1_000, infinity or Arabic digits, is more likely a mistake.
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskTable:
    """Examples of a task, in the order of the file.

    Attributes:
        path: file of the table, for messages.
        texts: text of each example, as written.
        text_pairs: second text of each example; None if the task has one text.
        labels: name of each example's class, without surrounding blanks.
        rows: line of the file on which each example starts, or row of a .parquet, from 1; empty if not read from a
            file.
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

    .tsv is split at tabs, without quoting (GLUE's files contain bare quotes); .csv is quoted as in RFC 4180; each line
    of .jsonl is an object with named fields, whose label may also be a number or a boolean, as in the columns of a
    .parquet. UTF-8, with or without a byte order mark. Blank lines are skipped.

    Args:
        path: the file.
        text: column of the text: its name, or its number from 0 if `header` is False.
        text_pair: column of a second text.
        label: column of the label.
        header: the first line of a .tsv or .csv names the columns. A .jsonl or .parquet always names its own.
        max_examples: read at most this many examples; None reads all.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file, or a row of it, is malformed; the message names the row.
    Example:
        >>> table = kbf.read_table("reviews.tsv", max_examples=2)
        >>> table.texts[0], table.labels[0]
        ('the film was fine', 'pos')
    """
    texts = [text] if text_pair is None else [text, text_pair]
    examples = []
    for number, values in read_columns(path, texts, [label], header, max_examples):
        require_text(f"{path}, row {number}", label, values[-1])
        examples.append((number, *values))
    rows, firsts, *seconds, labels = zip(*examples, strict=True)
    trimmed = trim_labels([f"{path}, row {row}" for row in rows], labels)
    return TaskTable(str(path), firsts, seconds[0] if seconds else None, tuple(trimmed), rows)


def read_columns(
    path: str | Path,
    texts: list[str],
    labels: list[str],
    header: bool,
    max_examples: int | None,
    keeps_blanks: bool = False,
) -> Iterator[Row]:
    """Yield the texts and labels of each row, as `read_table` reads them; the labels are not checked.

    Args:
        keeps_blanks: a blank line is an example of empty texts, and a text may be blank, as where every line gets a
            prediction. Otherwise blank lines are skipped, and blank texts refused.
    Raises:
        FileNotFoundError, ValueError: as for `read_table`.
    """
    columns = [*texts, *labels]
    if len(set(columns)) < len(columns):
        raise ValueError(
            f"Texts and label must be different columns. Received: {', '.join(columns)}. Name each one once."
        )
    rows = read_rows(path, columns, header, len(labels), keeps_blanks)
    for number, values in limit_examples(path, rows, max_examples):
        for column, value in zip(texts, values, strict=False):  # the labels are not among `texts`
            require_text(f"{path}, row {number}", column, value, keeps_blanks)
        yield number, values


def trim_labels(places: Sequence[str], labels: Sequence[Any]) -> list[Any]:
    """Strip blanks around names, also of tuples, and log one warning if there were any.

    Args:
        places: file and row of each label.
        labels: names; tuples of names, which also lose repeated ones; or anything else, which is unchanged.
    """
    trimmed: list[Any] = []
    changed = []
    for number, label in enumerate(labels):
        if isinstance(label, tuple):
            label = tuple(dict.fromkeys(label))
            trimmed.append(tuple(dict.fromkeys(name.strip() for name in label)))
        else:
            trimmed.append(label.strip() if isinstance(label, str) else label)
        if label != trimmed[-1]:
            changed.append(number)
    if changed:
        first = changed[0]
        _logger.warning(
            "%s: blanks around labels are removed: %r is read as %r, and so in %d of %d rows.",
            *(places[first], labels[first], trimmed[first], len(changed), len(labels)),
        )
    return trimmed


def limit_examples(path: str | Path, examples: Iterator[Any], max_examples: int | None) -> Iterator[Any]:
    """Yield at most `max_examples` examples of a file, None for all; raises ValueError if there are none."""
    if max_examples is not None and max_examples < 1:
        raise ValueError(
            f"`max_examples` must be at least 1. Received: {max_examples}. Leave it out to read every row."
        )
    first = next(examples, None)
    if first is None:
        raise ValueError(f"A table must hold at least one example. Received: {path}, which holds none.")
    yield first
    yield from islice(examples, None if max_examples is None else max_examples - 1)


def class_names(labels: Iterable[str], source: str) -> tuple[str, ...]:
    """Return the classes among the labels of a training table, in the order of `sort_names`.

    Args:
        source: origin of the labels, for messages.
    Raises:
        ValueError: there is one class only, so there is nothing to learn.
    """
    names = sort_names(labels)
    if len(names) < 2:
        received = f"{source}, where all are {names[0]!r}" if names else "none"
        raise ValueError(
            f"A training table must have at least two labels. Received: {received}. "
            "Check the label column, or read more rows."
        )
    return names


def sort_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return the distinct names, sorted by value if every name is an integer, else by spelling."""
    names = sorted(set(names))
    if all(INTEGER.fullmatch(name) for name in names):
        names.sort(key=int)
    return tuple(names)


def describe_lookalikes(counts: Mapping[str, int]) -> str:
    """Return one line about names of classes that are probably meant to be one, or "" if there are none.

    These are names that look the same (other invisible characters, blanks or Unicode form), that differ in case only,
    and spellings of one number: 1, 1.0 and true.

    Args:
        counts: name → number of rows.
    """
    looks: defaultdict[str, list[str]] = defaultdict(list)
    meanings: defaultdict[str | Decimal, list[str]] = defaultdict(list)
    for name in counts:
        looks[_look_of(name)].append(name)
    for look, names in looks.items():
        meanings[_meaning_of(look)] += names
    groups = [("look the same", names) for names in looks.values() if len(names) > 1]
    groups += [
        ("differ only in case or in how a number is spelt", names)
        for names in meanings.values()
        if len({_look_of(name) for name in names}) > 1
    ]
    if not groups:
        return ""
    parts = []
    for what, names in groups[:3]:
        shown = " and ".join(f"{ascii(name)} ({counts[name]:,} rows)" for name in names[:4])
        parts.append(f"{shown} {what}")
    more = f" ({len(groups) - 3} more groups)" if len(groups) > 3 else ""
    return f"different labels: {'; '.join(parts)}{more}. Make them one in the table if they are."


def describe_heading(counts: Mapping[str, int], has_header: bool = True) -> str:
    """Return one line about a class of a single row that is probably the name of a column, or "" if there is none.

    Args:
        counts: name → number of rows.
        has_header: whether the names of the columns are known, so that a first line cannot be meant.
    """
    for name, rows in counts.items():
        if rows == 1 and name.strip().casefold() in HEADINGS:
            remedy = (
                "Remove the row unless it is a class."
                if has_header
                else "If the first line has names, set task.header=true; if not, remove the row."
            )
            return f"a class {ascii(name)} with a single row, which looks like the name of a column. {remedy}"
    return ""


def describe_rare(counts: Mapping[str, int]) -> str:
    """Return one line about classes that have a single row, if they are most of many classes, or "".

    Args:
        counts: name → number of rows.
    """
    single = sum(rows == 1 for rows in counts.values())
    if len(counts) < MANY_CLASSES or 2 * single <= len(counts):
        return ""
    return (
        f"a single row of {single:,} of its {len(counts):,} classes, so no other row shows whether they were learnt. "
        "Merge rare classes, or look whether another column has the labels."
    )


def number_labels(labels: Iterable[str], places: Iterable[str], names: tuple[str, ...]) -> np.ndarray:
    """Return the class id of each label: its index in `names`.

    Args:
        places: of the labels, for messages.
    Returns:
        int32, (examples,).
    Raises:
        ValueError: a label is not among `names`: the training table never had it.
    """
    numbers = {name: number for number, name in enumerate(names)}
    ids = []
    for label, place in zip(labels, places, strict=True):
        if label not in numbers:
            twins = [name for name in names if _meaning_of(_look_of(name)) == _meaning_of(_look_of(label))]
            remedy = (
                f"It is {twins[0]!r} in another spelling: write both tables alike."
                if len(twins) == 1
                else "Correct it, or add such examples to the training table."
            )
            raise ValueError(
                f"{place}: a label must be one that the training table has. Received: {label!r}. "
                f"Known labels: {abridge(names)}. {remedy}"
            )
        ids.append(numbers[label])
    return np.array(ids, dtype=np.int32)


def require_text(place: str, column: str, value: Any, may_be_blank: bool = False) -> None:
    """Raise ValueError for a value that no tokenizer accepts, or that is blank unless it may be."""
    if not isinstance(value, str) or not (may_be_blank or value.strip()):
        received = abridge([repr(value)])
        raise ValueError(f"{place}: column {column!r} must hold text. Received: {received}. Fill it or drop the row.")
    if "\0" in value:  # JSON can encode it
        raise ValueError(
            f"{place}: column {column!r} must not hold NUL. Received: {abridge([repr(value)])}. Remove it."
        )
    try:
        value.encode()
    except UnicodeEncodeError:  # JSON can encode a lone surrogate
        received = abridge([ascii(value)])
        raise ValueError(
            f"{place}: column {column!r} must be Unicode. Received: {received}. Correct the row."
        ) from None


def _look_of(name: str) -> str:
    visible = "".join(" " if character.isspace() else character for character in unicodedata.normalize("NFKC", name))
    visible = "".join(character for character in visible if unicodedata.category(character) not in ("Cf", "Cc"))
    return " ".join(visible.split())


def _meaning_of(look: str) -> str | Decimal:
    folded = {"true": "1", "false": "0"}.get(look.casefold(), look.casefold())
    try:
        return Decimal(folded) if NUMBER.fullmatch(folded) else folded  # a float has not all the digits of an int64
    except ArithmeticError:  # an exponent of 19 digits
        return folded


# Read a number from a column of a table.

LARGEST = float(np.finfo(np.float32).max)


def read_score(place: str, column: str, value: Any, lowest: float = -np.inf, highest: float = np.inf) -> float:
    """Return the number that a column contains.

    Raises:
        ValueError: it is not a number, or not from `lowest` to `highest`.
    """
    require_text(place, column, value)
    spelt = value.strip()
    if not NUMBER.fullmatch(spelt) or abs(float(spelt)) > LARGEST:
        raise ValueError(
            f"{place}: column {column!r} must hold a finite number, with a point for its decimals. "
            f"Received: {abridge([repr(spelt)])}. Correct the row."
        )
    score = float(spelt)
    if not lowest <= score <= highest:
        raise ValueError(
            f"{place}: a score must be from {lowest} to {highest}. Received: {spelt}. "
            "Correct the row, or `lowest` and `highest`."
        )
    return score


def require_different_scores(scores: list[float], place: str) -> None:
    """Raise ValueError if all scores of a training table, which begins at `place`, are equal."""
    if np.ptp(scores) == 0:
        raise ValueError(
            "A training table must have at least two different scores. "
            f"Received: {len(scores)} examples from {place}, where all are {scores[0]}. "
            "Check the label column, or read more rows."
        )


# GLUE prediction tables, for classes and for numbers: the columns index, from 0, and prediction.

COLUMNS = ("index", "prediction")


def format_glue_table(values: Iterable[Any]) -> str:
    """Return values, unchanged, as a GLUE prediction table."""
    header = "\t".join(COLUMNS)
    return f"{header}\n" + "".join(f"{index}\t{value}\n" for index, value in enumerate(values))


def write_glue_table(path: str | Path, values: Iterable[str | float]) -> None:
    """Write labels or numbers unchanged; `glue.write_glue_submission` checks which ones GLUE accepts.

    Raises:
        ValueError: a label contains a tab or a line end.
    """
    written = [str(value) for value in values]
    for index, value in enumerate(written):
        if any(mark in value for mark in "\t\r\n"):
            raise ValueError(
                f"Prediction {index}: a column holds no tab or line end. Received: {abridge([repr(value)])}. "
                "Write the predictions as lines of JSON."
            )
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.write(format_glue_table(written))


def walk_glue_table(path: str | Path) -> Iterator[tuple[str, str]]:
    """Yield the location of each prediction of a table, for messages, and its text.

    Raises:
        ValueError: the file is not such a table, or its rows are out of order; the message names file and row.
    """
    for count, (row, (index, value)) in enumerate(read_rows(path, list(COLUMNS), header=True, num_labels=0)):
        place = f"{path}, row {row}"
        if index != str(count):
            raise ValueError(
                f"{place}: the column `index` must count the rows from 0. Received: {abridge([index])}, not {count}. "
                "Predict the whole test table, in its order."
            )
        yield place, value


def read_glue_table(path: str | Path, convert: Callable[[str], Any]) -> list[Any]:
    """Return the predictions of a table, in order.

    Args:
        convert: converts a text of the table to a prediction; `float` for numbers.
    Raises:
        ValueError: as for `walk_glue_table`, or a prediction cannot be converted.
    """
    found = []
    for place, value in walk_glue_table(path):
        try:
            found.append(convert(value))
        except ValueError:
            raise ValueError(f"{place}: must be a number. Received: {value!r}. Correct it.") from None
    return found
