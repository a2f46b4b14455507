"""Inside `fit`: count the steps, stop after any of them, average finite losses, keep a time limit."""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.distribution.cluster import SINGLE, Cluster
from keras_bert_flow.training.optimizers.schedules import PacedSteps

MAX_STEPS_AHEAD = 4  # steps that the host may run ahead: enough to keep a device busy while batches are read


@dataclass
class Interval:
    """The steps up to the next line of the log, evaluation or checkpoint, and the progress in them.

    Attributes:
        start: number of steps done before it.
        step: number of steps done so far.
        seconds: duration of its steps.
        logs: mean metrics since `start`.
        metrics: their sums and counts, so that an interrupted interval can be resumed with the same means.
        has_ended: whether a callback has set `model.stop_training`.
    """

    start: int
    step: int
    seconds: float = 0.0
    logs: dict[str, float] = field(default_factory=dict)
    metrics: list[Any] = field(default_factory=list)
    has_ended: bool = False


class StepFollower(keras.callbacks.CallbackList):
    """Callback list of `fit` in one interval, in place of Keras' own.

    Keras' list converts the metrics of every step to numbers, and so waits for each step to end. This one passes them
    on unchanged, so only callbacks that read a metric wait for it.

    Args:
        interval: the interval, updated after each step.
        callbacks: only their methods for batches are called here.
        is_stop_requested: called after every step.
        read_batch: returns one batch (x, y, sample_weight); TensorFlow creates its metrics at the first.
        batches_per_step: number of batches that the optimizer accumulates; callbacks are called for whole steps.
        cluster: the devices and processes of the run.
    """

    def __init__(
        self,
        model,
        interval: Interval,
        callbacks: Sequence[keras.callbacks.Callback],
        is_stop_requested: Callable[[], bool],
        read_batch: Callable[[], tuple],
        batches_per_step: int = 1,
        cluster: Cluster = SINGLE,
    ):
        super().__init__(model=model, add_history=True)
        self.interval, self._first_step = interval, interval.step
        self._batches_per_step = batches_per_step
        self._cluster = cluster
        self._queued: deque[Any] = deque()  # a metric of each step that may still be running
        self._callbacks, self._is_stop_requested, self._read_batch = callbacks, is_stop_requested, read_batch

    def on_train_begin(self, logs=None):
        pass

    on_train_end = on_train_begin

    def on_epoch_begin(self, epoch, logs=None):
        saved = self.interval.metrics
        if not saved or (self._cluster.computes_apart and not self._cluster.is_first):
            return
        if len(self._model.metrics_variables) != len(saved):
            self._model.test_on_batch(*self._read_batch())
        for variable, value in zip(self._model.metrics_variables, saved, strict=True):
            variable.assign(np.array(value, variable.dtype))

    def on_train_batch_begin(self, batch, logs=None):
        if batch % self._batches_per_step:
            return
        for callback in self._callbacks:
            callback.on_train_batch_begin(self.interval.step - self.interval.start, {})

    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % self._batches_per_step:
            return
        self.interval.step = self._first_step + (batch + 1) // self._batches_per_step
        for callback in self._callbacks:
            callback.on_train_batch_end(self.interval.step - 1 - self.interval.start, logs)
        self.interval.has_ended = self._model.stop_training
        is_time = self.interval.step % self._cluster.ask_every_steps == 0
        if is_time and self._cluster.is_any(self._is_stop_requested()):
            self._model.stop_training = True
        # A stop has to wait for all steps that are queued on the device. On JAX the host runs ahead of it; the metrics
        # of other backends cannot be waited for individually.
        self._queued.append(next(iter(logs.values()), None))
        if len(self._queued) > MAX_STEPS_AHEAD:
            oldest = self._queued.popleft()
            if hasattr(oldest, "block_until_ready"):
                oldest.block_until_ready()

    def on_epoch_end(self, epoch, logs=None):
        if self._cluster.computes_apart:
            self._cluster.merge_metrics(self._model)
            logs = self._model.get_metrics_result()
        self.interval.logs = {name: float(value) for name, value in logs.items()}
        variables = self._model.metrics_variables
        self.interval.metrics = [read_variable(variable).tolist() for variable in variables]
        if not any(self.interval.metrics[:2]):  # sum and count of the loss: every step was skipped
            self.interval.logs = {}


# Exclude steps with NaN or infinity from the mean metrics.


def keep_metrics_finite(model, is_everywhere: Callable[[Any], Any] = lambda is_finite: is_finite) -> None:
    """Make the metrics of a compiled model skip a step that would make them NaN or infinite.

    Otherwise a mean would stay NaN for the rest of the interval, although training skipped the step. Keras creates the
    metrics of single losses when it first gets outputs, so it is called with dummy ones.

    Args:
        is_everywhere: returns whether a condition holds in all processes: a step skipped in one is skipped in all.
    """
    outputs = {name: np.zeros([size or 1 for size in output.shape], "float32") for name, output in model.output.items()}
    labels = {name: np.zeros(output.shape[:-1], "int32") for name, output in outputs.items()}
    weights = {name: np.ones(label.shape, "float32") for name, label in labels.items()}
    model.compute_loss(y=labels, y_pred=outputs, sample_weight=weights)
    model.reset_metrics()
    for metric in model.metrics:
        _keep_finite(metric, is_everywhere)


def _keep_finite(metric, is_everywhere) -> None:
    update = metric.update_state

    def update_state(*arguments, **named):
        before = {variable.path: ops.copy(variable.value) for variable in metric.variables}
        update(*arguments, **named)
        after = metric.variables
        is_finite = is_everywhere(ops.all(ops.stack([ops.isfinite(variable.value) for variable in after])))
        for variable in after:  # a newly created one started at 0
            value = before.get(variable.path, ops.zeros_like(variable.value))
            variable.assign(ops.where(is_finite, variable.value, value))

    metric.update_state = update_state


# End a run within a given time: measure the speed as it goes, and take fewer but longer steps of the schedule.

FIRST_STEPS = 5  # before the first measurement; on jax they include the compilation
CHECK_SECONDS = 5.0  # between two measurements
MEMORY_SECONDS = 30.0  # how far back the speed is measured: the load of a machine changes
RESERVED_SHARE, RESERVED_SECONDS = 0.02, 1.0  # of the time, for what comes after the last step


class TimeLimit:
    """Last step of a run that has to end within a time.

    At each measurement the number of steps that still fit is the time left by the seconds per step. If they are fewer
    than those left of the schedule, each counts for several of its steps, so that the learning rate still decays to
    its end. If the machine gets faster, they count for fewer again, but never for less than one.

    Args:
        seconds: of training and evaluation, including those before a restart.
        total_steps: of the schedule; a faster machine takes no more.
        schedule: whose pace is set.
        least_steps: taken in any case, however long they take.
        final_evaluations: how many evaluations there are after the last step.
    Attributes:
        evaluation_seconds: duration of the last evaluation, which those after the last step are taken to have.
    """

    def __init__(
        self,
        seconds: float,
        total_steps: int,
        schedule: PacedSteps,
        least_steps: int = 0,
        final_evaluations: int = 1,
    ):
        self.last_step = total_steps
        self._total_steps, self._schedule = total_steps, schedule
        self._least_steps = min(least_steps, total_steps)
        self._seconds = seconds * (1 - RESERVED_SHARE) - RESERVED_SECONDS
        self._measured: list[tuple[int, float]] = []  # (step, seconds elapsed by then) of this process
        self._final_evaluations, self.evaluation_seconds = final_evaluations, 0.0

    def next_measurement(self, step: int) -> int:
        """Return the step after which to measure."""
        seconds = self._find_step_seconds()
        return step + (FIRST_STEPS if seconds is None else max(1, int(CHECK_SECONDS / seconds)))

    def correct(self, step: int, elapsed_seconds: float) -> None:
        """Set the last step and the pace to what fits; `step` steps took `elapsed_seconds`."""
        self._measured.append((step, elapsed_seconds))
        while len(self._measured) > 2 and elapsed_seconds - self._measured[1][1] > MEMORY_SECONDS:
            del self._measured[0]
        left = self._seconds - self._final_evaluations * self.evaluation_seconds - elapsed_seconds
        step_seconds = self._find_step_seconds()
        if step_seconds is not None or left <= 0:
            place = self._schedule.find_place(step)
            fitting = 0 if step_seconds is None or left <= 0 else int(left / step_seconds)
            steps = min(max(fitting, self._least_steps - step), math.ceil(self._total_steps - place))
            self.last_step = step + max(0, steps)
            if steps > 0:
                self._schedule.set_pace(step, place, (self._total_steps - place) / steps)

    def _find_step_seconds(self) -> float | None:
        """Return the seconds per step lately; the first measurement, with the compilation, only begins to count."""
        if len(self._measured) < 2:
            return None
        (first, before), (last, after) = self._measured[0], self._measured[-1]
        return max(1e-6, (after - before) / max(1, last - first))
