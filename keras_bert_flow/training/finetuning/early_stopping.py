"""Early stopping on the dev score."""

from pathlib import Path

import keras

from keras_bert_flow.training.state.logs import read_log


class StopWithoutGain(keras.callbacks.Callback):
    """Stop training when the score has not improved for `patience` evaluations; with `loss`, neither score nor loss.

    It reads the log, which survives restarts, so a killed and resumed run stops at the same step.

    Args:
        folder: of the run, with its log.
        field: score in a line of the log; higher is better.
        patience: evaluations without a new best score.
        loss: loss in a line of the log; lower is better, and a new minimum also counts as an improvement. Random
            weights may predict one class for epochs while their loss already falls.
        warmup: number of evaluations during learning rate warm-up, which do not count against `patience`.
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
