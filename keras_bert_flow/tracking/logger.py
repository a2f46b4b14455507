"""The interface of a logger: one run at a server, which begins, gets lines of the log, and ends."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

FINISHED, STOPPED, FAILED = "finished", "stopped", "failed"
FINAL = "final_"  # before the name of a metric of the published model


@dataclass(frozen=True)
class RunFacts:
    """What a logger is told of a run.

    Attributes:
        id: made once, and kept while the run lasts, restarts included.
        name: as people call it, such as `bert/pretraining`.
        stage: such as `pretraining`.
        key: content key of the result.
        parameters: settings, by dotted name; values are JSON.
        log: the file `log.jsonl`.
        state: a folder for what must be remembered over restarts.
    """

    id: str
    name: str
    stage: str
    key: str
    parameters: Mapping[str, Any]
    log: Path
    state: Path


class Logger(Protocol):
    """A run at a server; any method may raise what the server's package raises."""

    def open(self, facts: RunFacts) -> int:
        """Begin the run, or go on with the one that has its id; return the last step that it has, -1 for none."""

    def log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        """Add the numbers of lines of the log, in the order of their steps."""

    def close(self, status: str, metrics: Mapping[str, Any]) -> None:
        """End the run: `finished`, `stopped` to go on later, or `failed`.

        Args:
            metrics: of the published model; none unless it is finished.
        """


def find_numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Return what a logger can draw: the numbers of a line or of final metrics, without the step."""
    return {
        name: float(value)
        for name, value in values.items()
        if name != "step" and isinstance(value, int | float) and not isinstance(value, bool)
    }
