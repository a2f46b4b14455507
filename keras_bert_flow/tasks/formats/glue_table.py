"""GLUE prediction tables, for classes and for numbers: the columns index, from 0, and prediction."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from keras_bert_flow.tasks.formats.rows import abridge, read_rows

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
