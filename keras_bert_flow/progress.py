"""Show how training goes: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

SHOWN = ("loss", "dev_accuracy", "held_out_masked_lm_loss", "held_out_masked_lm_accuracy", "tokens_per_second")
LINE_EVERY_SECONDS = 5.0  # so that a log file of a long run stays readable

Report = Callable[[Mapping[str, Any]], None]


@contextmanager
def training_progress(total_steps: int | None = None) -> Iterator[Report]:
    """Yield what takes the lines of a training log; `total_steps` is None where several runs follow each other."""
    if not sys.stdout.isatty():
        yield _plain_report(total_steps)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console()) as bar:
        task = bar.add_task("training", total=total_steps)
        yield lambda line: bar.update(task, completed=line["step"], description=describe_line(line))


def describe_line(line: Mapping[str, Any]) -> str:
    """Write the figures that a person follows: `loss 6.913, tokens per second 9,872`."""
    figures = [f"{name.replace('_', ' ')} {_round(line[name])}" for name in SHOWN if name in line]
    return ", ".join(([line["run"]] if "run" in line else []) + figures)


def _plain_report(total_steps: int | None) -> Report:
    printed_at = 0.0

    def report(line: Mapping[str, Any]) -> None:
        nonlocal printed_at
        is_last = line["step"] == total_steps
        is_measured = any(name.startswith(("held_out", "dev")) for name in line)
        if is_last or is_measured or time.monotonic() - printed_at > LINE_EVERY_SECONDS:
            printed_at = time.monotonic()
            of_total = f" of {total_steps:,}" if total_steps else ""
            print(f"step {line['step']:,}{of_total}: {describe_line(line)}", flush=True)

    return report


def _round(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.3f}"
