"""Call the user's Keras callbacks over a run whose epochs are the stretches between two borders."""

from collections.abc import Mapping, Sequence
from typing import Any

import keras


class UserCallbacks:
    """The callbacks of one run, and what each is told.

    `on_train_begin` and `on_train_end` come once a process: the end also where SIGTERM interrupts the run, not where an
    error ends it. An epoch is a stretch of steps up to the next line of the log, numbered from 0 over the whole run,
    restarts included; `on_epoch_end` gets that line: `loss` and the other means, held-out figures where they were due.
    A stretch that was broken off begins again, at the batch where it was. `on_train_batch_end` gets the metrics since
    the stretch began as the backend's own scalars: reading one, as by `float`, waits for the step and slows training.
    `model.stop_training = True` ends the run after the step, or after the epoch, as if it had come to its last step.

    What a callback remembers is in no checkpoint, and what it does to the model is not in the key of the result.

    Args:
        callbacks: of the user.
        model: compiled.
        epochs: stretches of the whole run.
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
        """Hand over a line of the log, and say whether one of them ends the run."""
        self._model.stop_training = False
        for callback in self.callbacks:
            callback.on_epoch_end(epoch, dict(line))
        return self._model.stop_training

    def end(self, line: Mapping[str, Any]) -> None:
        for callback in self.callbacks:
            callback.on_train_end(dict(line))
