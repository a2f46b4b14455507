"""Experiment tracking: start the loggers of a run, each a process that reads `log.jsonl`, and report how it ended.

A logger can neither stop nor stall training: it is sent two lines, and waited for a limited time at the end. One that
ends by itself is reported at once, and started again at the end of the training, to send what is missing.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from keras_bert_flow.console.interrupts import REPORTED
from keras_bert_flow.installed import child_environment
from keras_bert_flow.results.artifacts import write_atomically
from keras_bert_flow.training.loop.logs import LOG_FILE
from keras_bert_flow.training.loop.train import Interrupted

ID_FILE = "tracking-id"
SAFE = "The training is not affected; log.jsonl has every number."
WAIT_SECONDS = 90.0  # once its package is imported, a logger gives up much earlier by itself
COMMAND = (sys.executable, "-m", "keras_bert_flow.tracking")


class Tracker:
    """The loggers of one run; a context manager that reports whether the run finished, was stopped or failed.

    Args:
        loggers: names from `loggers` in the configuration.
        folder: the folder of the log.
        state: a folder that exists as long as the run can be resumed, such as that of its checkpoints.
        name, stage, key, parameters: see `tracking.logger.RunFacts`.
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
        self._facts = {"name": name, "stage": stage, "key": key, "parameters": _flatten(parameters)}
        self._processes: dict[str, subprocess.Popen] = {}
        self._watchers: dict[str, threading.Thread] = {}
        self._first_line = b""
        self._is_ending = False
        self._metrics: Mapping[str, Any] | None = None

    def start(self) -> None:
        """Start the loggers; call it when the log has no lines of steps that will be repeated."""
        if not self._names or self._processes:
            return
        paths = {"log": str((self._folder / LOG_FILE).absolute()), "state": str(self._state.absolute())}
        self._first_line = json.dumps(self._facts | paths | {"id": self._take_id()}).encode() + b"\n"
        for name in self._names:
            self._start_logger(name)
            self._watchers[name] = threading.Thread(target=self._watch, args=(name, self._processes[name]), daemon=True)
            self._watchers[name].start()

    def finish(self, metrics: Mapping[str, Any]) -> None:
        """Record that the run has finished, with the metrics of its result."""
        self._metrics = dict(metrics)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        status = "finished" if error is None else "stopped" if isinstance(error, Interrupted) else "failed"
        line = json.dumps({"status": status, "metrics": self._metrics or {}}).encode() + b"\n"
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
        self._processes[name] = _start_process((*COMMAND, name))
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

    def _take_id(self) -> str:
        """Return the id of the run, created at its start."""
        path = self._state / ID_FILE
        if not path.is_file():
            self._state.mkdir(parents=True, exist_ok=True)
            write_atomically(path, uuid.uuid4().hex.encode())
        return path.read_text()


def _describe(status: int) -> str:
    """Say how a logger ended."""
    return f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"


def _start_process(command: Sequence[str]) -> subprocess.Popen:
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | child_environment())


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


def _flatten(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten sections to `section.name` → value, the names of `--set`; deeper levels stay values."""
    flat: dict[str, Any] = {}
    for section, values in sections.items():
        settings = {f"{section}.{name}": value for name, value in values.items()} if isinstance(values, dict) else {}
        flat |= settings or {section: values}
    return flat
