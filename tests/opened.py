"""Count how often the files of a folder are opened in this process."""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_watched: list[tuple[str, Counter]] = []


def _note(event: str, details: tuple) -> None:
    if event == "open" and _watched and isinstance(details[0], str | bytes | os.PathLike):
        path = os.path.abspath(os.fsdecode(details[0]))
        for prefix, opened in _watched:
            if path.startswith(prefix):
                opened[path.removeprefix(prefix)] += 1


sys.addaudithook(_note)  # for good: Python has no way to remove one


@contextmanager
def counting_opens(folder: Path) -> Iterator[Counter]:
    """Yield the number of times that each file below a folder is opened within the block."""
    entry = (f"{os.path.abspath(folder)}{os.sep}", Counter())
    _watched.append(entry)
    try:
        yield entry[1]
    finally:
        _watched.remove(entry)
