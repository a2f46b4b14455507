"""Measure what a command has written of its result so far."""

import os
from collections.abc import Callable
from pathlib import Path

from keras_bert_flow.artifacts import work_folder
from keras_bert_flow.local_paths import find_address


def written_to(output: str | Path) -> Callable[[], str]:
    """Return a function that says how much there is in the folder that an output on this disk is built in."""
    work = None if find_address(output) else work_folder(output)

    def measure() -> str:
        size = 0 if work is None else sum(_size(entry) for entry in work.rglob("*"))
        return f"{size / 1e6:,.1f} MB written" if size else ""

    return measure


def _size(path: Path) -> int:
    try:
        status = os.lstat(path)
    except OSError:  # renamed or removed meanwhile
        return 0
    return status.st_size if path.is_file() else 0
