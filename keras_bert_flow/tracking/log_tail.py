"""Read the lines that are added to a log while it grows."""

import json
from pathlib import Path
from typing import Any


class LogTail:
    """The lines of a log that have not been read yet; one that is half written comes when it is whole.

    Args:
        path: of `log.jsonl`, which may not be there yet.
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
