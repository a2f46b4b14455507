"""Show how work goes: a bar on a terminal, of training plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

from keras_bert_flow.terminal import escape_controls, show

SHOWN = ("loss", "tokens_per_second", "utilisation")  # beside scores on dev, and the loss and accuracy of each part
# Parts of a loss whose names are no words as they stand; with one head the whole loss is that of its part.
PARTS = {"masked_lm": "masked LM", "words": "bag of words", "soft": "soft targets", "hidden": "hidden states"}
HELD_OUT = "held_out_"
LINE_EVERY_SECONDS = 5.0  # so that a log file of a long run stays readable

Report = Callable[[Mapping[str, Any]], None]


@contextmanager
def training_progress(total_steps: int | None = None) -> Iterator[Report]:
    """Yield what takes the lines of a training log; `total_steps` is None where several runs follow each other."""
    if not sys.stdout.isatty():
        yield _plain_report(total_steps)
        return
    figures = TextColumn("{task.description}", markup=False, table_column=Column(ratio=1))  # goes on in further rows
    columns = (BarColumn(10), MofNCompleteColumn(), figures)
    with Progress(*columns, console=Console()) as bar:
        task, clock = bar.add_task("", total=total_steps), TimeLeft(total_steps)
        yield lambda line: bar.update(
            task, completed=line["step"], description=describe_line(line, clock.estimate(line))
        )


@contextmanager
def counting_progress(total: int | None = None) -> Iterator[Callable[[float], None]]:
    """Yield what takes how many more are done: a bar on standard error where that is a terminal, else nothing.

    Not on standard output, where the results go.
    """
    if not sys.stderr.isatty():
        yield lambda count: None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)


class TimeLeft:
    """Guess the seconds to the last step from the steps between two lines, the evaluation of the latter included.

    Not from the clock on the wall: a run that goes on has steps behind it that it did not make now.
    """

    def __init__(self, total_steps: int | None):
        self._total_steps, self._before = total_steps, (0, 0.0)

    def estimate(self, line: Mapping[str, Any]) -> float | None:
        """Return seconds; None where it is not known how many steps there are, or how long they take."""
        (step, seconds), self._before = self._before, (line["step"], line.get("elapsed_seconds", 0.0))
        if not self._total_steps or self._before[1] <= seconds or self._before[0] <= step:
            return None
        seconds_per_step = (self._before[1] - seconds) / (self._before[0] - step)
        return (self._total_steps - self._before[0]) * seconds_per_step


def describe_line(line: Mapping[str, Any], seconds_left: float | None = None) -> str:
    """Write the figures that a person follows: `loss 6.913, tokens per second 9,872, 0:12:30 left`."""
    figures = [f"{words} {_round(value)}" for name, value in line.items() if (words := _find_words(name, line))]
    left = [] if seconds_left is None else [f"{timedelta(seconds=round(seconds_left))} left"]
    return ", ".join(([escape_controls(line["run"])] if "run" in line else []) + figures + left)


def _find_words(name: str, line: Mapping[str, Any]) -> str | None:
    """Return what a figure of a line is called; None where it is not shown."""
    if name in SHOWN or name.startswith("dev_"):
        return name.replace("_", " ")
    part, _, kind = name.rpartition("_")
    if kind == "accuracy" and f"{part}_loss" in line:  # which is named before it
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
        is_last = line["step"] == total_steps
        is_measured = any(name.startswith(("held_out", "dev")) for name in line)
        if is_last or is_measured or time.monotonic() - printed_at > LINE_EVERY_SECONDS:
            printed_at = time.monotonic()
            of_total = f" of {total_steps:,}" if total_steps else ""
            show(f"step {line['step']:,}{of_total}: {describe_line(line, seconds_left)}")

    return report


def _round(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
