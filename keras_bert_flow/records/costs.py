"""Record what each published folder cost: time, memory and machine.

`costs.jsonl` has one line per process that worked on the folder and was not killed. The manifest leaves it out: equal
results have equal manifests, whoever made them and however long it took.
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
    """The cost of one process.

    Attributes:
        began: date and time in UTC, in ISO 8601 format.
        seconds: wall-clock time.
        processor_seconds: CPU time of the process and of its child processes that have ended.
        peak_bytes: peak memory of the largest of these.
        machine: processor and GPUs.
    """

    began: str
    seconds: float
    processor_seconds: float
    peak_bytes: int
    machine: str


@contextmanager
def noting_cost(folder: Path) -> Iterator[None]:
    """Append the cost of the block to the folder's `costs.jsonl`, also on an error, unless the folder is empty."""
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
    """Return the recorded costs, oldest first, without damaged lines; empty if there are none."""
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
    except OSError:  # a full disk or a missing folder, which the work itself reports
        pass


def _processor_seconds() -> float:
    spent = [resource.getrusage(who) for who in _WHO]
    return sum(usage.ru_utime + usage.ru_stime for usage in spent)
