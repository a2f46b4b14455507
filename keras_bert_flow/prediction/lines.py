"""Read items from lines of text, and write predictions as lines of JSON."""

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from keras_bert_flow.tasks.task import Prediction


def read_items(lines: Iterable[str]) -> Iterator[Any]:
    """Read an item a line: a text; two texts with a tab between them; or JSON, where a line begins with { or [.

    Blank lines are passed over.

    Raises:
        ValueError: a line begins as JSON and is none.
    """
    for number, line in enumerate(lines, 1):
        line = line.strip("\r\n ")
        if not line:
            continue
        if line[0] in "{[":
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(
                    f"Line {number}: a line that begins with {line[0]} must be JSON. Received: {error}. "
                    'Correct it, or give the text as {"text": ...}.'
                ) from None
        else:
            yield line.split("\t") if "\t" in line else line


def write_lines(predictions: Iterable[Prediction], path: str | Path | None) -> None:
    """Write predictions as they come: to a file, which is there when all are written, or to standard output."""
    if path is None:
        _write(predictions, sys.stdout)
        return
    unfinished = Path(f"{path}.unfinished")
    try:
        with unfinished.open("w", encoding="utf-8") as file:
            _write(predictions, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _write(predictions: Iterable[Prediction], file: TextIO) -> None:
    for prediction in predictions:
        file.write(json.dumps(prediction, ensure_ascii=False) + "\n")
        file.flush()  # somebody may wait for it at the other end of a pipe
