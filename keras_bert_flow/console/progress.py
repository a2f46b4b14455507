"""Progress display: a bar on a terminal, plain lines elsewhere, on standard error except for training."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Column

from keras_bert_flow.console.terminal import escape_controls, is_told, show

SHOWN = ("loss", "tokens_per_second", "utilisation")  # besides dev scores, and the loss and accuracy of each part
# Display names of loss parts whose names do not read well; with one head the total loss is that of its part.
PARTS = {"masked_lm": "masked LM", "words": "bag of words", "soft": "soft targets", "hidden": "hidden states"}
HELD_OUT = "held_out_"
LINE_EVERY_SECONDS = 5.0  # so that a log file of a long run stays readable
STILL_EVERY_SECONDS = 30.0  # the same, for work of which only the elapsed time is known
MEASURE_EVERY_SECONDS = 1.0

Report = Callable[[Mapping[str, Any]], None]


@contextmanager
def training_progress(total_steps: int | None = None) -> Iterator[Report]:
    """Yield a function that shows lines of a training log.

    Args:
        total_steps: None for several runs in sequence, whose lines have their own `total_steps`.
    """
    if not sys.stdout.isatty():
        yield _plain_report(total_steps)
        return
    figures = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1))  # wraps onto further rows
    columns = (BarColumn(10), MofNCompleteColumn(), figures)
    with Progress(*columns, console=Console()) as bar:
        task, clock = bar.add_task("", total=total_steps), TimeLeft(total_steps)
        yield lambda line: bar.update(
            task,
            completed=line["step"],
            total=total_steps or line.get("total_steps"),
            description=", ".join(filter(None, (_describe_place(line), describe_line(line, clock.estimate(line))))),
        )


@contextmanager
def counting_progress(
    total: float | None = None, name: str = "", are_bytes: bool = False
) -> Iterator[Callable[[float], None]]:
    """Yield a function that advances a counter: a bar on a terminal, elsewhere a line every few seconds.

    Progress goes to standard error, since results go to standard output.

    Args:
        total: the total count; None if unknown.
        name: the name of the work; without a name, progress is shown only on a terminal.
        are_bytes: the counts are bytes.
    """
    if not is_told() or not (sys.stderr.isatty() or name):
        yield lambda count: None
        return
    if not sys.stderr.isatty():
        yield _plain_count(total, name, are_bytes)
        return
    count = DownloadColumn() if are_bytes else MofNCompleteColumn()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), count, TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(escape_controls(name), total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def working(name: str, measure: Callable[[], str] | None = None) -> Iterator[None]:
    """Show on standard error what is being done and for how long, for work without a counter.

    A terminal shows a transient line; elsewhere a line is printed at once and then at intervals.

    Args:
        measure: returns a description of the result so far; it is called from another thread.
    """
    if not is_told():
        yield
        return
    started, ended = time.monotonic(), threading.Event()
    name, is_terminal = escape_controls(name), sys.stderr.isatty()
    every = MEASURE_EVERY_SECONDS if is_terminal else LINE_EVERY_SECONDS if measure else STILL_EVERY_SECONDS

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    line = Progress(*columns, console=Console(stderr=True), transient=True) if is_terminal else None
    with line or nullcontext():
        task = line.add_task(name, total=None) if line else None

        def follow() -> None:
            while not ended.wait(every):
                with suppress(OSError, ValueError):  # files that disappear; a closed standard error
                    made = measure() if measure else ""
                    text = f"{name}, {made}" if made else name
                    if line and task is not None:
                        line.update(task, description=text)
                    else:
                        spent = timedelta(seconds=round(time.monotonic() - started))
                        show(f"{text}, {spent} so far", sys.stderr)

        if not is_terminal:
            show(name, sys.stderr)
        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(MEASURE_EVERY_SECONDS)


def _plain_count(total: float | None, name: str, are_bytes: bool) -> Callable[[float], None]:
    """Return a counter that prints a line at most every `LINE_EVERY_SECONDS`, the first at once."""
    started = printed_at = time.monotonic()
    done = 0.0

    def write(count: float) -> str:
        return f"{count / 1e6:,.1f} MB" if are_bytes else f"{count:,.0f}"

    def advance(count: float) -> None:
        nonlocal done, printed_at
        done, now = done + count, time.monotonic()
        if now - printed_at < LINE_EVERY_SECONDS:
            return
        printed_at = now
        of_total = f" of {write(total)}" if total else ""
        seconds = (total - done) * (now - started) / done if total and done else None
        left = "" if seconds is None else f", {timedelta(seconds=max(0, round(seconds)))} left"
        show(f"{name}: {write(done)}{of_total}{left}", sys.stderr)

    show(f"{name}: {write(total)}" if total else name, sys.stderr)
    return advance


@dataclass
class TimeLeft:
    """Estimate the remaining seconds from the steps between two log lines, including the evaluation of the latter.

    The wall clock is not used: a resumed run has earlier steps that it did not make in this process.
    """

    total_steps: int | None
    _before: tuple[int, float] = (0, 0.0)

    def estimate(self, line: Mapping[str, Any]) -> float | None:
        """Return the remaining seconds; None if the number of steps or their duration is unknown."""
        (step, seconds), self._before = self._before, (line["step"], line.get("elapsed_seconds", 0.0))
        if not self.total_steps or self._before[1] <= seconds or self._before[0] <= step:
            return None
        seconds_per_step = (self._before[1] - seconds) / (self._before[0] - step)
        return (self.total_steps - self._before[0]) * seconds_per_step


def describe_line(line: Mapping[str, Any], seconds_left: float | None = None) -> str:
    """Format the main figures of a log line: `loss 6.913, tokens per second 9,872, 0:12:30 left`."""
    figures = [
        f"{words} {line[name]:,}" if isinstance(line[name], int) else f"{words} {line[name]:.3f}"
        for name in _order(line)
        if (words := _find_words(name, line))
    ]
    left = [] if seconds_left is None else [f"{timedelta(seconds=round(seconds_left))} left"]
    return ", ".join(([escape_controls(line["run"])] if "run" in line else []) + figures + left)


def _describe_place(line: Mapping[str, Any]) -> str:
    """Return which run of several a line is of; empty if there is only one."""
    return f"run {line['run_number']:,} of {line['run_count']:,}" if "run_number" in line else ""


def _order(line: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of figures, the accuracy of each part after its loss, by which the part is named."""
    for name in line:
        part, _, kind = name.rpartition("_")
        if kind != "accuracy" or f"{part}_loss" not in line:
            yield name
        if kind == "loss" and f"{part}_accuracy" in line:
            yield f"{part}_accuracy"


def _find_words(name: str, line: Mapping[str, Any]) -> str | None:
    """Return the display name of a figure; None if it is not shown."""
    if name in SHOWN or name.startswith("dev_"):
        return name.replace("_", " ")
    part, _, kind = name.rpartition("_")
    if kind == "accuracy" and f"{part}_loss" in line:  # the part is named by its loss, shown just before
        return "accuracy"
    if kind != "loss":
        return None
    part, of_what = part.removeprefix(HELD_OUT), "held-out " * part.startswith(HELD_OUT)
    return of_what + PARTS.get(part, part.replace("_", " "))


def _plain_report(total_steps: int | None) -> Report:
    printed_at, clock = 0.0, TimeLeft(total_steps)

    def report(line: Mapping[str, Any]) -> None:
        nonlocal printed_at
        seconds_left = clock.estimate(line)
        steps = total_steps or line.get("total_steps")
        is_last = line["step"] == steps
        is_measured = any(name.startswith(("held_out", "dev")) for name in line)
        if is_last or is_measured or time.monotonic() - printed_at > LINE_EVERY_SECONDS:
            printed_at = time.monotonic()
            of_total = f" of {steps:,}" if steps else ""
            place = ", ".join(filter(None, (_describe_place(line), f"step {line['step']:,}{of_total}")))
            show(f"{place}: {describe_line(line, seconds_left)}")

    return report
