"""Train in stretches: `model.fit` up to the next border, then log, evaluate, save; start again from any border.

The data set is sliced at the step where a stretch begins, so a resumed run sees exactly the batches that are left.
Endless data with `steps_per_epoch` keeps TensorFlow from running a step too many at its end.
"""

import itertools
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.training.checkpoints import Checkpoints
from keras_bert_flow.training.logs import append_log, rewind_log


class Interrupted(Exception):
    """Training was asked to stop, and has saved a checkpoint to go on from."""


@dataclass(frozen=True)
class Borders:
    """After how many steps things happen; each also happens at the last step."""

    total_steps: int
    log_every_steps: int
    evaluate_every_steps: int
    checkpoint_every_steps: int

    def next_after(self, step: int) -> int:
        lengths = (self.log_every_steps, self.evaluate_every_steps, self.checkpoint_every_steps)
        return min(self.total_steps, *((step // length + 1) * length for length in lengths))

    def is_due(self, step: int, every_steps: int) -> bool:
        return step % every_steps == 0 or step == self.total_steps


def train(
    model,
    make_dataset: Callable[[int], Any],
    borders: Borders,
    folder: Path,
    checkpoints: Checkpoints,
    evaluate: Callable[[], Mapping[str, float]],
    tokens_per_step: int,
    report: Callable[[Mapping[str, Any]], None],
    batches_per_step: int = 1,
) -> float:
    """Train a compiled model to the last step, going on from the newest checkpoint.

    Args:
        make_dataset: batches from a given step on, for `model.fit`.
        borders: when to log, evaluate and save.
        folder: where log.jsonl is kept.
        checkpoints: where the state is kept.
        evaluate: returns what is added to a line of the log.
        tokens_per_step: batch size × sequence length, padding included.
        report: called with every line of the log.
        batches_per_step: how many batches the optimizer accumulates.
    Returns:
        Seconds of training and evaluation, those before a restart included.
    Raises:
        Interrupted: the process got SIGTERM; a checkpoint was saved at the border after it.
        ValueError: the loss is not a number.
    """
    model.optimizer.build(model.trainable_variables)
    step, progress = checkpoints.restore(model)
    rewind_log(folder, step)
    elapsed_seconds = progress.get("elapsed_seconds", 0.0)
    with _stop_requests() as stop_requested:
        while step < borders.total_steps:
            started_at = time.perf_counter()
            end = borders.next_after(step)
            history = _fit(model, make_dataset, step, (end - step) * batches_per_step)
            fit_seconds = time.perf_counter() - started_at
            line = {"step": end} | {name: float(values[-1]) for name, values in history.items()}
            line["tokens_per_second"] = round(tokens_per_step * (end - step) / fit_seconds)
            if borders.is_due(end, borders.evaluate_every_steps):
                line |= evaluate()
            _check_finite(line)
            elapsed_seconds += time.perf_counter() - started_at
            line["elapsed_seconds"] = round(elapsed_seconds, 2)
            step = end
            append_log(folder, line)
            report(line)
            if borders.is_due(step, borders.checkpoint_every_steps) or stop_requested.is_set():
                checkpoints.save(model, step, {"elapsed_seconds": elapsed_seconds})
            if stop_requested.is_set() and step < borders.total_steps:
                raise Interrupted(f"Stopped at step {step:,}; run the same command again to go on.")
    return elapsed_seconds


def _fit(model, make_dataset: Callable[[int], Any], step: int, batches: int) -> Mapping[str, list[float]]:
    try:
        return model.fit(make_dataset(step), steps_per_epoch=batches, shuffle=False, verbose=0).history
    except Exception:
        # TensorFlow buries an error of the input under pages of its own; the same batches raise it as it was.
        for _ in itertools.islice(make_dataset(step), batches):
            pass
        raise


def _check_finite(line: Mapping[str, float]) -> None:
    for name, value in line.items():
        if not np.isfinite(value):
            raise ValueError(
                f"The {name} must be a number. Received: {value} by step {line['step']}. Lower the learning rate."
            )


@contextmanager
def _stop_requests() -> Iterator[threading.Event]:
    """Note SIGTERM instead of dying of it; only the main thread may."""
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested
        return
    before = signal.signal(signal.SIGTERM, lambda *_: requested.set())
    try:
        yield requested
    finally:
        signal.signal(signal.SIGTERM, before)
