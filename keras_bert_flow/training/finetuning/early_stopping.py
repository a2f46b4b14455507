"""End a run that no longer gains on the dev table."""

from pathlib import Path

import keras

from keras_bert_flow.training.state.logs import read_log


class StopWithoutGain(keras.callbacks.Callback):
    """End the run where its score has not risen for so many evaluations, or neither that nor its loss improved.

    It looks at the log, which goes on over kills, so a run that was killed ends at the step at which it would have.

    Args:
        folder: of the run, with its log.
        field: of a line of the log; higher is better.
        patience: evaluations without a new highest score.
        loss: of a line of the log; lower is better, and a new lowest value counts as a gain too. Random weights may
            stay with one class for epochs while their loss already falls.
        warmup: evaluations while the learning rate still rises, in which nothing is expected.
    """

    def __init__(self, folder: Path, field: str, patience: int, loss: str | None = None, warmup: int = 0):
        super().__init__()
        self._folder, self._field, self._patience, self._loss = folder, field, patience, loss
        self._warmup = warmup

    def on_epoch_end(self, epoch, logs=None):
        if self._field not in (logs or {}):
            return
        lines = [line for line in read_log(self._folder) if self._field in line]
        scores = [line[self._field] for line in lines]
        gains = [scores.index(max(scores)), self._warmup - 1]
        if self._loss is not None:
            losses = [line[self._loss] for line in lines]
            gains.append(losses.index(min(losses)))
        if len(scores) - 1 - max(gains) >= self._patience:
            self.model.stop_training = True
