"""The interface of a logger: one run on a tracking server, which is opened, gets lines of the log, and is closed."""

from collections.abc import Mapping, Sequence
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
