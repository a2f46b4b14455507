"""Call the user's Keras callbacks in a run whose epochs are the intervals between lines of the log."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras


class UserCallbacks:
    """The user's callbacks of one run.

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
        self.callbacks, self._model = tuple(callbacks), model
        for callback in self.callbacks:
            callback.set_params({"verbose": 0, "epochs": epochs, "steps": None})
            callback.set_model(model)

    def begin(self) -> None:
        for callback in self.callbacks:
            callback.on_train_begin({})

    def begin_epoch(self, epoch: int) -> None:
        for callback in self.callbacks:
            callback.on_epoch_begin(epoch, {})

    def end_epoch(self, epoch: int, line: Mapping[str, Any]) -> bool:
        """Call `on_epoch_end` with a line of the log; return whether a callback ends the run."""
        self._model.stop_training = False
        for callback in self.callbacks:
            callback.on_epoch_end(epoch, dict(line))
        return self._model.stop_training

    def end(self, line: Mapping[str, Any]) -> None:
        for callback in self.callbacks:
            callback.on_train_end(dict(line))
