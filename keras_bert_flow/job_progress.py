"""How far a job is whose work is done elsewhere: in processes of Apache Beam, or deep below the command that waits.

Whoever works adds a line to a file that the environment names; the command that waits reads what was added.
"""

import os
import tempfile
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

VARIABLE = "KBF_JOB_PROGRESS"
MB = "MB"
DOCUMENTS = "documents"
_DONE = "="  # in the place of a unit


class JobPart(NamedTuple):
    """A part of a job: what is done, and in which unit it is counted ("": not at all)."""

    name: str
    unit: str = ""


def plan_parts(*parts: JobPart) -> None:
    """Say of what parts the job is, in their order."""
    _write(*((part.name, part.unit, 0.0) for part in parts))


def expect(unit: str, count: float) -> None:
    """Add to how many there are of a unit, in each part that is counted in it."""
    _write(("", unit, count))


def note(part: JobPart, count: float = 1.0) -> None:
    """Add to how many are done of a part; 0 says that it has begun."""
    _write((part.name, _DONE, count))


def _write(*lines: tuple[str, str, float]) -> None:
    if file := os.environ.get(VARIABLE):
        text = "".join(f"{part}\t{unit}\t{count!r}\n" for part, unit, count in lines)
        with suppress(OSError), open(file, "ab", buffering=0) as notes:  # one write: lines of processes do not mix
            notes.write(text.encode())


class Count(NamedTuple):
    """How far a part is: what is done, of how many (0: not known), in which unit ("": it is not counted)."""

    done: float
    total: float
    unit: str


class JobProgress:
    """What the lines of a job come to. A context: the file is there, and named, within it."""

    def __enter__(self) -> Self:
        descriptor, self._file = tempfile.mkstemp(prefix="kbf-progress-")
        os.close(descriptor)
        self._before = os.environ.get(VARIABLE)
        os.environ[VARIABLE] = self._file
        self._read_bytes = 0
        self._units: dict[str, str] = {}  # by part, in their order
        self._done: dict[str, float] = {}  # by part that has begun
        self._totals: dict[str, float] = {}  # by unit
        self._first: dict[str, tuple[float, float]] = {}  # by part: when it was first seen, and what was done then
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._before is None:
            os.environ.pop(VARIABLE, None)
        else:
            os.environ[VARIABLE] = self._before
        Path(self._file).unlink(missing_ok=True)

    def describe(self) -> str:
        """Write the part at hand: `part 2 of 4, tokenizing: 1,200 of 4,904 documents, 0:00:20 left of it`.

        Returns:
            Empty where nothing was told, as by workers on other machines.
        """
        begun = self.read()
        if not begun:
            return ""
        part, count = list(begun.items())[-1]
        words = f"part {[*self._units].index(part) + 1} of {len(self._units)}, {part}"
        if not count.unit:
            return words
        of_total = f" of {count.total:,.0f}" if count.total else ""
        return f"{words}: {count.done:,.0f}{of_total} {count.unit}{self._write_left(part, count)}"

    def read(self) -> dict[str, Count]:
        """Return the parts that have begun, in their order, and how far each is."""
        with open(self._file, "rb") as file:
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
        return {part: self._count(part, unit) for part, unit in self._units.items() if part in self._done}

    def _count(self, part: str, unit: str) -> Count:
        done, total = self._done[part], self._totals.get(unit, 0.0)
        return Count(min(done, total) if total else done, total, unit)  # a bundle that failed is done again

    def _write_left(self, part: str, count: Count) -> str:
        now = time.monotonic()
        since, before = self._first.setdefault(part, (now, count.done))
        if not count.total or count.done <= before or now <= since:
            return ""
        seconds = (count.total - count.done) * (now - since) / (count.done - before)
        return f", {timedelta(seconds=round(seconds))} left of it"
