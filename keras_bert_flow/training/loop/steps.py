"""Callback list for the steps inside `fit`: count them, stop after any of them, call the user's callbacks."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import keras
import numpy as np

from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.distribution.cluster import SINGLE, Cluster

MAX_STEPS_AHEAD = 4  # steps that the host may run ahead: enough to keep a device busy while batches are read


@dataclass
class Stretch:
    """An interval of steps between two borders (log, evaluation or checkpoint), and its progress.

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

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class StepFollower(keras.callbacks.CallbackList):
    """Callback list of `fit` in one interval, in place of Keras' own.

    Keras' list converts the metrics of every step to numbers, and so waits for each step to end. This one passes them
    on unchanged, so only callbacks that read a metric wait for it.

    Args:
        stretch: the interval, updated after each step.
        callbacks: only their methods for batches are called here.
        is_stop_requested: called after every step.
        read_batch: returns one batch (x, y, sample_weight); TensorFlow creates its metrics at the first.
        batches_per_step: number of batches that the optimizer accumulates; callbacks are called for whole steps.
        cluster: the devices and processes of the run.
    """

    def __init__(
        self,
        model,
        stretch: Stretch,
        callbacks: Sequence[keras.callbacks.Callback],
        is_stop_requested: Callable[[], bool],
        read_batch: Callable[[], tuple],
        batches_per_step: int = 1,
        cluster: Cluster = SINGLE,
    ):
        super().__init__(model=model, add_history=True)
        self.stretch, self._first_step = stretch, stretch.step
        self._batches_per_step = batches_per_step
        self._cluster = cluster
        self._queued: deque[Any] = deque()  # a metric of each step that may still be running
        self._callbacks, self._is_stop_requested, self._read_batch = callbacks, is_stop_requested, read_batch

    def on_train_begin(self, logs=None):
        pass

    def on_epoch_begin(self, epoch, logs=None):
        saved = self.stretch.metrics
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
            callback.on_train_batch_begin(self.stretch.step - self.stretch.start, {})

    def on_train_batch_end(self, batch, logs=None):
        if (batch + 1) % self._batches_per_step:
            return
        self.stretch.step = self._first_step + (batch + 1) // self._batches_per_step
        for callback in self._callbacks:
            callback.on_train_batch_end(self.stretch.step - 1 - self.stretch.start, logs)
        self.stretch.has_ended = self._model.stop_training
        is_time = self.stretch.step % self._cluster.ask_every_steps == 0
        if is_time and self._cluster.is_any(self._is_stop_requested()):
            self._model.stop_training = True
        self._wait_for_an_earlier_step(logs)

    def _wait_for_an_earlier_step(self, logs):
        """Limit the number of steps queued on the device, since a stop has to wait for all of them.

        On JAX the host runs ahead of the device. The metrics of other backends cannot be waited for individually.
        """
        self._queued.append(next(iter(logs.values()), None))
        if len(self._queued) > MAX_STEPS_AHEAD:
            oldest = self._queued.popleft()
            if hasattr(oldest, "block_until_ready"):
                oldest.block_until_ready()

    def on_epoch_end(self, epoch, logs=None):
        if self._cluster.computes_apart:
            self._cluster.merge_metrics(self._model)
            logs = self._model.get_metrics_result()
        self.stretch.logs = {name: float(value) for name, value in logs.items()}
        variables = self._model.metrics_variables
        self.stretch.metrics = [read_variable(variable).tolist() for variable in variables]
        if not any(self.stretch.metrics[:2]):  # sum and count of the loss: every step was skipped
            self.stretch.logs = {}

    def on_train_end(self, logs=None):
        pass
