"""Read the lines appended to a growing log."""

import json
from pathlib import Path
from typing import Any


class LogTail:
    """Reads the new lines of a log; a partially written line is returned once it is complete.

    Args:
        path: path of `log.jsonl`, which need not exist yet.
    """

    def __init__(self, path: Path):
        self._path, self._offset = path, 0

    def read(self) -> list[dict[str, Any]]:
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._offset += len(whole) + len(newline)
        return [json.loads(line) for line in whole.splitlines()]
