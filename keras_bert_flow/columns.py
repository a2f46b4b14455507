"""Tables for a terminal: cells are wrapped to its width, and long paths are shortened to the names of their files."""

import io
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any, TextIO

from keras_bert_flow.terminal import JOINERS, escape_controls

MOST_COLUMNS, LEAST_COLUMNS = 100, 40
GAP = 2  # columns between two cells


def find_columns(file: TextIO | None = None) -> int | None:
    """Return the width for a text: that of the terminal, at most 100 columns; None where the output is not a terminal.

    Args:
        file: standard output by default.
    """
    if not (sys.stdout if file is None else file).isatty():
        return None
    return max(LEAST_COLUMNS, min(MOST_COLUMNS, shutil.get_terminal_size().columns))


def fit(rows: Sequence[Sequence[str]], columns: int) -> str:
    """Align rows, with cells that are too long for the width wrapped; nothing is cut away."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, GAP, 0, 0))
    for _ in rows[0]:
        grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*(Text(escape_controls(cell, JOINERS)) for cell in row))
    file = io.StringIO()
    Console(file=file, width=columns, color_system=None, legacy_windows=False).print(grid)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


def name_files(values: Sequence[Any]) -> list[Any]:
    """Return values with each absolute path shortened to its file name, or to as many folders more as tell them apart.

    >>> name_files(["/data/a/train.tsv", "/data/b/train.tsv", 3])
    ['…/a/train.tsv', '…/b/train.tsv', 3]
    """
    deepest = max((_count_parts(value) for value in values), default=1)
    for depth in range(1, deepest + 1):
        named = [_shorten(value, depth) for value in values]
        if len({repr(value) for value in named}) == len({repr(value) for value in values}):
            return named
    return [*values]


def _shorten(value: Any, depth: int) -> Any:
    if isinstance(value, list | tuple):
        return [_shorten(item, depth) for item in value]
    if not isinstance(value, str) or not os.path.isabs(value) or len(parts := value.split("/")) <= depth + 1:
        return value
    return ("…/" if depth > 1 else "") + "/".join(parts[-depth:])


def _count_parts(value: Any) -> int:
    if isinstance(value, list | tuple):
        return max(map(_count_parts, value), default=1)
    return value.count("/") + 1 if isinstance(value, str) else 1
