"""Progress of a job in other processes.

Workers append lines to a file that an environment variable names; the waiting command reads the new lines.
"""

import os
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from keras_bert_flow.console.interrupts import on_leaving

VARIABLE = "KBF_JOB_PROGRESS"
MB = "MB"
DOCUMENTS = "documents"
_DONE = "="  # in place of a unit


class JobPart(NamedTuple):
    """A part of a job: its name, and the unit in which it is counted ("": not counted)."""

    name: str
    unit: str = ""


def plan_parts(*parts: JobPart) -> None:
    """Declare the parts of the job, in order."""
    _write(*((part.name, part.unit, 0.0) for part in parts))


def expect(unit: str, count: float) -> None:
    """Add to the total of a unit, for every part that is counted in it."""
    _write(("", unit, count))


def note(part: JobPart, count: float = 1.0) -> None:
    """Add to the count that a part has done; 0 marks it as begun."""
    _write((part.name, _DONE, count))


def _write(*lines: tuple[str, str, float]) -> None:
    if file := os.environ.get(VARIABLE):
        text = "".join(f"{part}\t{unit}\t{count!r}\n" for part, unit, count in lines)
        with suppress(OSError):
            # Not created: a worker may briefly outlive its command, which removes the file.
            descriptor = os.open(file, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(descriptor, text.encode())  # once, so that lines of several processes do not mix
            finally:
                os.close(descriptor)


class Count(NamedTuple):
    """Progress of a part: the count done, the total (0: unknown), and the unit ("": not counted)."""

    done: float
    total: float
    unit: str


@contextmanager
def following_job() -> Iterator["JobProgress"]:
    """Create a progress file and name it in the environment, within the block; yield its reader."""
    file = os.path.join(tempfile.gettempdir(), f"kbf-progress-{uuid.uuid4().hex}")
    before = os.environ.get(VARIABLE)
    with on_leaving(lambda _: Path(file).unlink(missing_ok=True)):  # first: a signal may arrive at once
        os.close(os.open(file, os.O_CREAT | os.O_EXCL, 0o600))
        os.environ[VARIABLE] = file
        try:
            yield JobProgress(file)
        finally:
            if before is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = before
            Path(file).unlink(missing_ok=True)


@dataclass
class JobProgress:
    """Progress of a job, summed from the lines of its progress file."""

    file: str
    _read_bytes: int = 0
    _units: dict[str, str] = field(default_factory=dict)  # by part, in order
    _done: dict[str, float] = field(default_factory=dict)  # by part, of those that have begun
    _totals: dict[str, float] = field(default_factory=dict)  # by unit
    # By part: time first seen, and the count done by then.
    _first: dict[str, tuple[float, float]] = field(default_factory=dict)

    def describe(self) -> str:
        """Describe the current part: `part 2 of 4, tokenizing: 1,200 of 4,904 documents, 0:00:20 left of it`.

        Returns:
            Empty if nothing was reported, as with workers on other machines.
        """
        begun = self.read()
        if not begun:
            return ""
        part, count = list(begun.items())[-1]
        words = f"part {[*self._units].index(part) + 1} of {len(self._units)}, {part}"
        if not count.unit:
            return words
        of_total = f" of {count.total:,.0f}" if count.total else ""
        left, now = "", time.monotonic()
        since, before = self._first.setdefault(part, (now, count.done))
        if count.total and count.done > before and now > since:
            seconds = (count.total - count.done) * (now - since) / (count.done - before)
            left = f", {timedelta(seconds=round(seconds))} left of it"
        return f"{words}: {count.done:,.0f}{of_total} {count.unit}{left}"

    def read(self) -> dict[str, Count]:
        """Return the progress of each part that has begun, in order."""
        with open(self.file, "rb") as file:
            file.seek(self._read_bytes)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read_bytes += len(whole)
        for line in whole.decode().splitlines():
            part, unit, count = line.split("\t")
            if unit == _DONE:
                self._done[part] = self._done.get(part, 0.0) + float(count)
            elif part:
                self._units[part] = unit
            else:
                self._totals[unit] = self._totals.get(unit, 0.0) + float(count)
        counts = {}
        for part, unit in self._units.items():
            if part in self._done:
                done, total = self._done[part], self._totals.get(unit, 0.0)
                counts[part] = Count(min(done, total) if total else done, total, unit)  # a retried bundle counts twice
        return counts
