"""The training log `log.jsonl`: one line per interval, without gaps or repeats across restarts."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.artifacts import write_atomically
from keras_bert_flow.json_documents import parse_json

LOG_FILE = "log.jsonl"


def append_log(folder: Path, line: Mapping[str, Any]) -> None:
    """Append a line and sync it to disk, before a later checkpoint; every line has `step`, the steps done so far."""
    with open(folder / LOG_FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Read the lines of the log, except an incomplete last one of a killed run; empty if there is no log."""
    path = Path(folder) / LOG_FILE
    if not path.is_file():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    try:
        values = [parse_json(line) for line in lines]
        if any(type(value["step"]) is not int for value in values):
            raise ValueError("a line without its step")
    except (ValueError, TypeError, LookupError) as error:
        raise ValueError(f"A log must be whole. Received: {path}, damaged ({error}). Remove it.") from None
    return values


def rewind_log(folder: Path, step: int) -> None:
    """Remove the lines after a step: their steps were lost and will be repeated."""
    lines = [line for line in read_log(folder) if line["step"] <= step]
    write_atomically(Path(folder) / LOG_FILE, "".join(json.dumps(line) + "\n" for line in lines).encode())
