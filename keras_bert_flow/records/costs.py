"""Note in a published folder what making it cost.

`costs.jsonl` has a line for each process that worked on the folder and was not killed. The manifest leaves it out:
equal results have equal manifests, whoever made them and for how long.
"""

import json
import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from keras_bert_flow.json_documents import parse_json
from keras_bert_flow.machine import describe_machine, read_peak_memory

COSTS = "costs.jsonl"
_WHO = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)


@dataclass(frozen=True)
class Cost:
    """What one process spent.

    Attributes:
        began: date and time in UTC, as ISO 8601 writes them.
        seconds: by the clock.
        processor_seconds: of the process and of those that it started and that have ended.
        peak_bytes: the most memory of any one of these.
        machine: processor and GPUs.
    """

    began: str
    seconds: float
    processor_seconds: float
    peak_bytes: int
    machine: str


@contextmanager
def noting_cost(folder: Path) -> Iterator[None]:
    """Add what the block costs to the folder's notes, also where it ends with an error, unless it left nothing."""
    began, started, spent = datetime.now(UTC), time.monotonic(), _processor_seconds()
    try:
        yield
    finally:
        cost = Cost(
            began.isoformat(timespec="seconds"),
            round(time.monotonic() - started, 3),
            round(_processor_seconds() - spent, 3),
            max(map(read_peak_memory, _WHO)),
            describe_machine(),
        )
        if folder.is_dir() and any(folder.iterdir()):
            _append(folder / COSTS, json.dumps(asdict(cost)))


def read_costs(folder: str | Path) -> list[Cost]:
    """Return the notes, the oldest first; none where there are none, and without those that are damaged."""
    path, costs = Path(folder) / COSTS, []
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return []
    for line in lines:
        try:
            cost = Cost(**parse_json(line))
            datetime.fromisoformat(cost.began)
            if min(cost.seconds, cost.processor_seconds, cost.peak_bytes) >= 0 and isinstance(cost.machine, str):
                costs.append(cost)
        except (ValueError, TypeError):
            continue
    return costs


def _append(path: Path, line: str) -> None:
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError:  # a disk without room or a folder that is gone, of which the work itself tells
        pass


def _processor_seconds() -> float:
    spent = [resource.getrusage(who) for who in _WHO]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)
