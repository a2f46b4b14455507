"""The training log `log.jsonl`, without gaps or repeats across restarts, its TensorBoard events, and its loggers."""

import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from keras_bert_flow.console.interrupts import REPORTED
from keras_bert_flow.files.documents import parse_json
from keras_bert_flow.installed import child_environment
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
        head = b""
        if self._path.is_file():
            with open(self._path, "rb") as file:
                head = file.read(_WALL_TIME_AT + _WALL_TIME.size)
        is_whole = len(head) == _WALL_TIME_AT + _WALL_TIME.size
        self._started_at = (_WALL_TIME.unpack(head[_WALL_TIME_AT:])[0] if is_whole else 0.0) or time.time()
        events = b"".join(map(self._encode, read_log(folder)))
        write_atomically(self._path, frame_record(encode_header(self._started_at)) + events)

    def append(self, line: Mapping[str, Any]) -> None:
        """Append a line of the log."""
        with open(self._path, "ab") as file:
            file.write(self._encode(line))

    def _encode(self, line: Mapping[str, Any]) -> bytes:
        scalars = {name: value for name, value in line.items() if name != "step" and isinstance(value, int | float)}
        return frame_record(encode_scalars(line["step"], self._started_at + line["elapsed_seconds"], scalars))


# Experiment tracking: start the loggers of a run, each a process that reads `log.jsonl`, and report how it ended.
#
# A logger can neither stop nor stall training: it is sent two lines, and waited for a limited time at the end. One that
# ends by itself is reported at once, and started again at the end of the training, to send what is missing.

ID_FILE = "tracking-id"
SAFE = "The training is not affected; log.jsonl has every number."
WAIT_SECONDS = 90.0  # once its package is imported, a logger gives up much earlier by itself
COMMAND = (sys.executable, "-m", "keras_bert_flow.tracking")


class Interrupted(Exception):
    """Training was stopped by a signal, after saving a checkpoint to resume from."""


class Tracker:
    """The loggers of one run; a context manager that reports whether the run finished, was stopped or failed.

    Args:
        loggers: names from `loggers` in the configuration.
        folder: the folder of the log.
        state: a folder that exists as long as the run can be resumed, such as that of its checkpoints.
        name, stage, key, parameters: see `tracking.logger.RunFacts`.
    Attributes:
        metrics: those of the result, set when the run has finished.
    """

    def __init__(
        self,
        loggers: Sequence[str],
        folder: Path,
        state: Path,
        name: str,
        stage: str,
        key: str,
        parameters: Mapping[str, Any],
    ):
        self._names, self._folder, self._state = loggers, folder, state
        flat: dict[str, Any] = {}  # `section.name` → value, the names of `--set`; deeper levels stay values
        for section, values in parameters.items():
            settings = {f"{section}.{n}": value for n, value in values.items()} if isinstance(values, dict) else {}
            flat |= settings or {section: values}
        self._facts = {"name": name, "stage": stage, "key": key, "parameters": flat}
        self._processes: dict[str, subprocess.Popen] = {}
        self._watchers: dict[str, threading.Thread] = {}
        self._first_line = b""
        self._is_ending = False
        self.metrics: Mapping[str, Any] = {}

    def start(self) -> None:
        """Start the loggers; call it when the log has no lines of steps that will be repeated."""
        if not self._names or self._processes:
            return
        paths = {"log": str((self._folder / LOG_FILE).absolute()), "state": str(self._state.absolute())}
        id_file = self._state / ID_FILE  # of the run, created at its start
        if not id_file.is_file():
            self._state.mkdir(parents=True, exist_ok=True)
            write_atomically(id_file, uuid.uuid4().hex.encode())
        self._first_line = json.dumps(self._facts | paths | {"id": id_file.read_text()}).encode() + b"\n"
        for name in self._names:
            self._start_logger(name)
            self._watchers[name] = threading.Thread(target=self._watch, args=(name, self._processes[name]), daemon=True)
            self._watchers[name].start()

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        status = "finished" if error is None else "stopped" if isinstance(error, Interrupted) else "failed"
        line = json.dumps({"status": status, "metrics": dict(self.metrics)}).encode() + b"\n"
        lost = [name for name, process in self._processes.items() if process.poll() not in (None, 0, REPORTED)]
        for name in lost:
            self._watchers[name].join()  # until it has reported
        self._is_ending = True
        if status == "finished":  # otherwise what is missing is sent when the training is resumed
            for name in lost:
                self._start_logger(name)
        for process in self._processes.values():
            _write(process, line, is_last=True)
        for name, process in self._processes.items():
            self._end(name, process)
            if name in lost and process.returncode == 0:
                self._say(name, "was started again and has sent everything")

    def _start_logger(self, name: str) -> None:
        environment = os.environ | child_environment()
        self._processes[name] = subprocess.Popen((*COMMAND, name), stdin=subprocess.PIPE, env=environment)
        _write(self._processes[name], self._first_line)

    def _watch(self, name: str, process: subprocess.Popen) -> None:
        """Report a logger that ends while the training goes on, unless it has said why."""
        process.wait()
        if not self._is_ending and process.returncode not in (0, REPORTED):
            self._say(
                name,
                f"{_describe(process.returncode)} and sends nothing until the end of the training, when it is started "
                f"again. {SAFE}",
            )

    def _end(self, name: str, process: subprocess.Popen) -> None:
        """Wait for a logger that has been told the end, and report one that has not sent everything."""
        try:
            process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self._say(name, f"did not end within {WAIT_SECONDS:.0f} s, so the last lines may be missing. {SAFE}")
        else:
            if process.returncode not in (0, REPORTED):
                self._say(name, f"{_describe(process.returncode)}, so the last lines are missing. {SAFE}")

    def _say(self, name: str, what: str) -> None:
        sys.stderr.write(f"The `{name}` logger of {self._facts['name']} {what.rstrip('.')}.\n")
        sys.stderr.flush()


def _describe(status: int) -> str:
    """Say how a logger ended."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _write(process: subprocess.Popen, line: bytes, is_last: bool = False) -> None:
    pipe = process.stdin
    if pipe is None:
        return
    with suppress(OSError):  # the process has ended, and has reported why
        pipe.write(line)
        pipe.flush()
    if is_last:
        with suppress(OSError):
            pipe.close()
