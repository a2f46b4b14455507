"""The interface of a logger of a tracking server, and following the log of a run."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
FINAL = "final_"  # before the name of a metric of the published model


@dataclass(frozen=True)
class RunFacts:
    """Description of a run for a logger.

    Attributes:
        id: created once and kept for the whole run, including restarts.
        name: display name, such as `bert/pretraining`.
        stage: name of the stage, such as `pretraining`.
        key: content key of the result.
        parameters: settings, by dotted name; values are JSON.
        log: the file `log.jsonl`.
        state: a folder for state that persists across restarts.
    """

    id: str
    name: str
    stage: str
    key: str
    parameters: Mapping[str, Any]
    log: Path
    state: Path


class Logger(Protocol):
    """A run on a tracking server; any method may raise the errors of the server's package."""

    def open(self, facts: RunFacts) -> int:
        """Start the run, or resume the one with its id; return its last logged step, or -1."""

    def log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Log the numbers in lines of the log, in the order of their steps."""

    def close(self, status: str, metrics: Mapping[str, Any]) -> None:
        """End the run as `finished`, `stopped` (to be resumed later), or `failed`.

        Args:
            metrics: metrics of the published model; empty unless the run is finished.
        """


def find_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that a logger can plot: the numbers of a line or of final metrics, without the step."""
    return {
        name: float(value)
        for name, value in values.items()
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }


# Read the lines appended to a growing log.


@dataclass
class LogTail:
    """Reads the new lines of a log; a partially written line is returned once it is complete.

    Attributes:
        path: path of `log.jsonl`, which need not exist yet.
    """

    path: Path
    _offset: int = 0

    def read(self) -> list[dict[str, Any]]:
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                whole, newline, _ = file.read().rpartition(b"\n")
        except FileNotFoundError:
            return []
        self._offset += len(whole) + len(newline)
        return [json.loads(line) for line in whole.splitlines()]


# Follow the log of a run to its end, and pass each line to a logger once, even if its server fails meanwhile.

POLL_SECONDS = 1.0
RETRY_SECONDS = 30.0


@dataclass(frozen=True)
class End:
    """How a run ended: its status, and the metrics of the published model."""

    status: str
    metrics: Mapping[str, Any]


def follow(
    make_logger: Callable[[], Logger],
    facts: RunFacts,
    wait: Callable[[float], End | None],
    warn: Callable[[str], None],
) -> bool:
    """Log until the run has ended; return whether everything was logged.

    Lines up to the last step on the server are left out, since a run resumed from a checkpoint writes them again.

    Args:
        make_logger: called again after a failure.
        wait: waits the given number of seconds for the end of the run; returns it, or None if the run goes on.
        warn: called with the first error.
    """
    tail, waiting = LogTail(facts.log), []
    logger: Logger | None = None
    last_step, pause, end = -1, 0.0, None
    has_failed = False
    while end is None:
        end = wait(pause)
        waiting += tail.read()
        try:
            if logger is None:
                opened = make_logger()
                last_step = opened.open(facts)
                logger = opened
                waiting += tail.read()  # opening takes seconds
            if lines := [line for line in waiting if line["step"] > last_step]:
                logger.log(lines)
                last_step = lines[-1]["step"]
            waiting.clear()
            if end is not None:
                logger.close(end.status, end.metrics)
            pause = POLL_SECONDS
        except Exception as error:
            if not has_failed:
                warn(f"{type(error).__name__}: {error}")
            has_failed, pause = True, RETRY_SECONDS
            if end is not None:
                return False
            logger = None  # reopening queries the last step on the server
    return True
