"""The training log `log.jsonl`, without gaps or repeats across restarts, and its TensorBoard events."""

import json
import os
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.files.documents import parse_json
from keras_bert_flow.records.example import encode_header, encode_scalars
from keras_bert_flow.records.tfrecord import frame_record
from keras_bert_flow.results.artifacts import write_atomically

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


# TensorBoard event file with the content of `log.jsonl`: rewritten when a run is resumed, then appended to. Written
# without TensorBoard, which need not be installed where a model is trained.

EVENTS_FILE = "events.out.tfevents.log"  # TensorBoard looks for `tfevents` in file names
_WALL_TIME = struct.Struct("<d")
_WALL_TIME_AT = 8 + 4 + 1  # after the length of the first record, its checksum and the tag of the field


class EventFile:
    """The TensorBoard event file of a run: a scalar for each number in a line of the log, with the same name.

    The file is written from the log after `rewind_log`, so no step is repeated or missing. The times of events follow
    `elapsed_seconds` in the log, which excludes the time between a kill and a restart.

    Args:
        folder: the folder of the log.
    """

    def __init__(self, folder: Path):
        self._path = Path(folder) / EVENTS_FILE
        self._started_at = _read_start(self._path) or time.time()
        events = b"".join(map(self._encode, read_log(folder)))
        write_atomically(self._path, frame_record(encode_header(self._started_at)) + events)

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line of the log."""
        with open(self._path, "ab") as file:
            file.write(self._encode(line))

    def _encode(self, line: Mapping[str, Any]) -> bytes:
        scalars = {name: value for name, value in line.items() if name != "step" and isinstance(value, int | float)}
        return frame_record(encode_scalars(line["step"], self._started_at + line["elapsed_seconds"], scalars))


def _read_start(path: Path) -> float | None:
    """Return the start time in the header of an event file; None if there is no complete header."""
    if not path.is_file():
        return None
    with open(path, "rb") as file:
        head = file.read(_WALL_TIME_AT + _WALL_TIME.size)
    return _WALL_TIME.unpack(head[_WALL_TIME_AT:])[0] if len(head) == _WALL_TIME_AT + _WALL_TIME.size else None
