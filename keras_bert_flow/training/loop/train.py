"""Training loop: `model.fit` for an interval of steps, then log, evaluate and save; with signals and user callbacks.

The dataset is sliced at the step where an interval begins, so a resumed run reads exactly the remaining batches.
Infinite data with `steps_per_epoch` keeps TensorFlow from running an extra step at the end.
"""

import itertools
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import keras
import numpy as np

from keras_bert_flow.console.interrupts import leave, mute_closed_terminal
from keras_bert_flow.distribution.cluster import SINGLE, Cluster
from keras_bert_flow.training.loop.checkpoints import Checkpoints
from keras_bert_flow.training.loop.logs import EventFile, Interrupted, append_log, rewind_log
from keras_bert_flow.training.loop.steps import Interval, StepFollower, TimeLimit
from keras_bert_flow.training.optimizers.guard import GuardedOptimizer, NotFiniteError

UntilStopped = Callable[[Iterable], Iterator]


class _StopRequest(Exception):
    """A stop was requested before the interval had its line in the log."""


@dataclass(frozen=True)
class StepSize:
    """What is computed in a step, from which follows the speed that is logged.

    Attributes:
        tokens: batch size × sequence length, padding included.
        batches: number of batches that the optimizer accumulates.
        flops: FLOPs, for `flops_per_second`; None: not counted.
        peak_flops: peak FLOP/s of the device, for `utilisation`.
    """

    tokens: int
    batches: int = 1
    flops: int | None = None
    peak_flops: float | None = None

    def measure_speed(self, interval: Interval) -> dict[str, float]:
        """Return the speed of an interval, for its line of the log."""
        steps_per_second = (interval.step - interval.start) / interval.seconds
        speed: dict[str, float] = {"tokens_per_second": round(self.tokens * steps_per_second)}
        if self.flops:
            speed["flops_per_second"] = round(self.flops * steps_per_second)
            if self.peak_flops:
                speed["utilisation"] = self.flops * steps_per_second / self.peak_flops
        return speed


@dataclass(frozen=True)
class Intervals:
    """Intervals of logging, evaluation and checkpoints, in steps; each also happens at the last step.

    `save_steps`: further steps at which one ends.
    """

    total_steps: int
    log_every_steps: int
    evaluate_every_steps: int
    checkpoint_every_steps: int
    save_steps: frozenset[int] = frozenset()

    def next_after(self, step: int) -> int:
        lengths = (self.log_every_steps, self.evaluate_every_steps, self.checkpoint_every_steps)
        further = (other for other in self.save_steps if other > step)
        return min(self.total_steps, *((step // length + 1) * length for length in lengths), *further)

    def count(self, step: int) -> int:
        """Count the ends of intervals up to a step in constant time, by inclusion-exclusion over their multiples."""
        lengths = (self.log_every_steps, self.evaluate_every_steps, self.checkpoint_every_steps)
        last = min(step, self.total_steps - 1)
        inner = 0
        for size, sign in ((1, 1), (2, -1), (3, 1)):
            inner += sign * sum(last // math.lcm(*chosen) for chosen in itertools.combinations(lengths, size))
        further = sum(other <= last and all(other % length for length in lengths) for other in self.save_steps)
        return inner + further + (step >= self.total_steps)

    def is_due(self, step: int, every_steps: int) -> bool:
        return step % every_steps == 0 or step == self.total_steps


def train(
    model,
    make_dataset: Callable[[int], Any],
    intervals: Intervals,
    folder: Path,
    checkpoints: Checkpoints,
    evaluate: Callable[[UntilStopped], Mapping[str, float]],
    step_size: StepSize,
    report: Callable[[Mapping[str, Any]], None],
    callbacks: Sequence[keras.callbacks.Callback] = (),
    tensorboard: bool = False,
    on_begin: Callable[[], None] = lambda: None,
    cluster: Cluster = SINGLE,
    limit: TimeLimit | None = None,
    save: Callable[[int], None] = lambda step: None,
) -> float:
    """Train a compiled model from the newest checkpoint to the last step, or until a callback ends the run.

    Args:
        make_dataset: returns the batches from a given step on, for `model.fit`.
        intervals: when to log, evaluate and save.
        folder: the folder of log.jsonl.
        checkpoints: the checkpoints of the run.
        evaluate: returns the scores to add to a line of the log. Its argument is a function to wrap its batches in,
            which ends the evaluation if a stop is requested.
        step_size: what is computed in a step.
        report: called with every line of the log.
        callbacks: see `UserCallbacks`.
        tensorboard: write a TensorBoard event file next to log.jsonl.
        on_begin: called once log.jsonl has no lines of steps that will be repeated.
        cluster: the devices and processes of the run.
        limit: ends the run in time, with fewer steps.
        save: called with each of the `save_steps`, before the checkpoint there, if one is due.
    Returns:
        Seconds of training and evaluation, including those before a restart.
    Raises:
        Interrupted: on SIGTERM or SIGINT, after saving a checkpoint at the end of the current step or evaluation batch.
        NotFiniteError: the loss is NaN or a step was not finite; nothing is saved.
        ValueError: the checkpoint is after the last step.
    """
    model.optimizer.build(model.trainable_variables)
    step, progress = checkpoints.restore(model)
    cluster.check_same(step)
    cluster.spread_seeds(model)
    if step > intervals.total_steps:
        raise ValueError(
            "`total_steps` must not be less than the steps that are done. Received: "
            f"total_steps={intervals.total_steps} and a checkpoint of step {step}. Choose at least {step}, or another "
            "output folder."
        )
    interrupted = progress.get("interval") or progress.get("stretch")  # its name in checkpoints of earlier versions
    interval = Interval(**(interrupted or {"start": step, "step": step}))
    rewind_log(folder, interval.start)
    events = EventFile(folder) if tensorboard else None
    on_begin()
    elapsed_seconds, has_ended = progress.get("elapsed_seconds", 0.0), progress.get("has_ended", False)
    if limit is not None:
        limit.last_step = progress.get("last_step", intervals.total_steps)
        intervals = replace(intervals, total_steps=limit.last_step)
    if interval.start == intervals.total_steps or has_ended:
        return elapsed_seconds
    users = UserCallbacks(callbacks, model, intervals.count(intervals.total_steps))
    epoch, line = intervals.count(interval.start), {}
    with stop_requests() as stop_requested:
        while interval.start < intervals.total_steps and not has_ended:
            started_at = time.perf_counter()
            for callback in users.callbacks:
                callback.on_epoch_begin(epoch, {})
            end = intervals.next_after(max(interval.start, interval.step - 1))  # the intervals may have changed
            if limit is not None:
                end = min(end, limit.next_measurement(interval.step))
            _fit(model, make_dataset, interval, end, users, stop_requested.is_set, step_size.batches, cluster)
            line = {"step": interval.step} | interval.logs
            if isinstance(model.optimizer, GuardedOptimizer):
                line |= model.optimizer.check()
            line |= step_size.measure_speed(interval)
            _check_finite(line)
            if limit is not None and interval.step == end:
                limit.correct(end, elapsed_seconds + time.perf_counter() - started_at)
                intervals = replace(intervals, total_steps=limit.last_step)
            try:
                if interval.step < end and not interval.has_ended:
                    raise _StopRequest
                if intervals.is_due(end, intervals.evaluate_every_steps) or interval.has_ended:
                    evaluation_at = time.perf_counter()
                    line |= evaluate(lambda batches: _until(cluster, stop_requested, batches))
                    _check_finite(line)
                    if limit is not None:
                        limit.evaluation_seconds = time.perf_counter() - evaluation_at
            except _StopRequest:
                elapsed_seconds += time.perf_counter() - started_at
                progress = {"elapsed_seconds": elapsed_seconds, "interval": asdict(interval)}
                progress |= {"last_step": intervals.total_steps} if limit is not None else {}
                _save_and_stop(model, checkpoints, interval.step, progress, users, cluster)
            elapsed_seconds += time.perf_counter() - started_at
            line["elapsed_seconds"] = round(elapsed_seconds, 2)
            append_log(folder, line)
            if events:
                events.append(line)
            report(line)
            model.stop_training = False
            for callback in users.callbacks:
                callback.on_epoch_end(epoch, dict(line))
            has_ended = model.stop_training or interval.has_ended
            epoch, interval = epoch + 1, Interval(interval.step, interval.step)
            if interval.start in intervals.save_steps:
                save(interval.start)
            is_last = has_ended or interval.start == intervals.total_steps
            progress = {"elapsed_seconds": elapsed_seconds, "has_ended": has_ended}
            progress |= {"last_step": intervals.total_steps} if limit is not None else {}
            if not is_last and cluster.is_any(stop_requested.is_set()):
                _save_and_stop(model, checkpoints, interval.start, progress, users, cluster)
            if intervals.is_due(interval.start, intervals.checkpoint_every_steps) or is_last:
                checkpoints.save(model, interval.start, progress)
    users.end(line)
    return elapsed_seconds


def _fit(
    model, make_dataset, interval: Interval, end: int, users, is_stop_requested, batches_per_step, cluster
) -> None:
    """Train to the end of an interval, or to the step at which a callback or a signal interrupts it."""
    step, started_at = interval.step, time.perf_counter()
    if step == end or interval.has_ended:  # it was interrupted during its evaluation
        return
    batches = (end - step) * batches_per_step
    follower = StepFollower(
        model,
        interval,
        users.callbacks,
        is_stop_requested,
        lambda: next(iter(make_dataset(step))),
        batches_per_step,
        cluster,
    )
    try:
        model.fit(
            cluster.feed(model, make_dataset(step)),
            steps_per_epoch=batches,
            shuffle=False,
            verbose=0,
            callbacks=follower,
        )
    except Exception:
        # TensorFlow buries an input error in pages of its own messages; reading the batches again raises the original.
        for _ in itertools.islice(make_dataset(step), batches):
            pass
        raise
    interval.seconds += time.perf_counter() - started_at


def _save_and_stop(
    model, checkpoints: Checkpoints, step: int, progress: Mapping[str, Any], users, cluster: Cluster
) -> NoReturn:
    checkpoints.save(model, step, progress)
    cluster.wait()  # when one process ends, its launcher may end the others
    users.end({})
    raise Interrupted(f"Stopped at step {step:,}; run the same command again to go on.")


def _until(cluster: Cluster, stop_requested: threading.Event, batches: Iterable) -> Iterator:
    for batch in batches:
        if cluster.is_any(stop_requested.is_set()):
            raise _StopRequest
        yield batch


def _check_finite(line: Mapping[str, float]) -> None:
    for name, value in line.items():
        if not np.isfinite(value):
            raise NotFiniteError(
                f"The {name} must be a number. Received: {value} by step {line['step']}. Lower the learning rate."
            )


# Call the user's Keras callbacks in a run whose epochs are the intervals between lines of the log.


class UserCallbacks:
    """The user's callbacks of one run, whose training begins with this object.

    `on_train_begin` and `on_train_end` are called once per process. `on_train_end` is also called if SIGTERM interrupts
    the run, but not if an error ends it. An epoch is the interval of steps up to the next line of the log, numbered
    from 0 over the whole run, restarts included. `on_epoch_end` gets that line: `loss` and the other means, and
    held-out scores if they were due. An interrupted interval begins again, at the batch where it stopped.
    `on_train_batch_end` gets the mean metrics of the interval so far as scalars of the backend: reading one, for
    example with `float`, waits for the step and slows training. `model.stop_training = True` ends the run after the
    step, or after the epoch, as if it had reached its last step.

    The state of callbacks is not saved in checkpoints, and their effect on the model is not in the key of the result.

    Args:
        callbacks: of the user.
        model: a compiled model.
        epochs: number of intervals of the whole run.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback], model, epochs: int):
        self.callbacks = tuple(callbacks)
        for callback in self.callbacks:
            callback.set_params({"verbose": 0, "epochs": epochs, "steps": None})
            callback.set_model(model)
        for callback in self.callbacks:
            callback.on_train_begin({})

    def end(self, line: Mapping[str, Any]) -> None:
        for callback in self.callbacks:
            callback.on_train_end(dict(line))


# Handle SIGTERM, SIGHUP and Ctrl-C (SIGINT) by setting a flag that training checks after every step.

NOTICE = b"\nStopping at the next step, with a checkpoint; Ctrl-C again stops at once, without.\n"


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Catch SIGTERM, SIGHUP and the first SIGINT and set an event instead of ending; only in the main thread.

    Further SIGTERMs have no effect: schedulers send several, and SIGKILL ends a process at once. SIGHUP, of a terminal
    that was closed, does the same unless it is ignored (`nohup`); what is written to that terminal from then on is
    discarded. A second SIGINT raises KeyboardInterrupt, or under `kbf` ends the process; the run can then be resumed
    from its newest checkpoint. If there is another handler for SIGINT or SIGHUP, it stays in place.
    """
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested
        return

    def note_interrupt(number, frame):
        if requested.is_set():
            before[signal.SIGINT](number, frame)
        requested.set()
        os.write(2, NOTICE)  # not `print`, which the signal may have interrupted

    def note_hangup(number, frame):
        requested.set()
        mute_closed_terminal()

    before: dict[int, Any] = {signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: requested.set())}
    if signal.getsignal(signal.SIGHUP) in (signal.SIG_DFL, leave):
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, note_hangup)
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, leave):
        before[signal.SIGINT] = signal.signal(signal.SIGINT, note_interrupt)
    try:
        yield requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
