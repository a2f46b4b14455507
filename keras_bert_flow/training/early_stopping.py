"""End a run that no longer gains on the dev table."""

from pathlib import Path

import keras

from keras_bert_flow.training.logs import read_log


class StopWithoutGain(keras.callbacks.Callback):
    """End the run where its score has not risen for so many evaluations.

    It looks at the log, which goes on over kills, so a run that was killed ends at the step at which it would have.

    Args:
        folder: of the run, with its log.
        field: of a line of the log; higher is better.
        patience: evaluations without a new highest score.
    """

    def __init__(self, folder: Path, field: str, patience: int):
        super().__init__()
        self._folder, self._field, self._patience = folder, field, patience

    def on_epoch_end(self, epoch, logs=None):
        scores = [line[self._field] for line in read_log(self._folder) if self._field in line]
        if self._field in (logs or {}) and len(scores) - 1 - scores.index(max(scores)) >= self._patience:
            self.model.stop_training = True
