"""Experiment tracking: start the loggers of a run, each a process that reads `log.jsonl`, and report how it ended.

A logger can neither stop nor stall training: it is sent two lines, and waited for a limited time at the end.
"""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from keras_bert_flow.artifacts import write_atomically
from keras_bert_flow.own_packages import child_environment
from keras_bert_flow.training.loop.train import Interrupted
from keras_bert_flow.training.state.logs import LOG_FILE

ID_FILE = "tracking-id"
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
        self._processes: list[subprocess.Popen] = []
        self._metrics: Mapping[str, Any] | None = None

    def start(self) -> None:
        """Start the loggers; call it when the log has no lines of steps that will be repeated."""
        if not self._names or self._processes:
            return
        paths = {"log": str((self._folder / LOG_FILE).absolute()), "state": str(self._state.absolute())}
        facts = json.dumps(self._facts | paths | {"id": self._take_id()}).encode() + b"\n"
        for name in self._names:
            self._processes.append(_start_process((*COMMAND, name)))
            _write(self._processes[-1], facts)

    def finish(self, metrics: Mapping[str, Any]) -> None:
        """Record that the run has finished, with the metrics of its result."""
        self._metrics = dict(metrics)

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        status = "finished" if error is None else "stopped" if isinstance(error, Interrupted) else "failed"
        line = json.dumps({"status": status, "metrics": self._metrics or {}}).encode() + b"\n"
        for process in self._processes:
            _write(process, line, is_last=True)
        for process in self._processes:
            try:
                process.wait(WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _take_id(self) -> str:
        """Return the id of the run, created at its start."""
        path = self._state / ID_FILE
        if not path.is_file():
            self._state.mkdir(parents=True, exist_ok=True)
            write_atomically(path, uuid.uuid4().hex.encode())
        return path.read_text()


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
