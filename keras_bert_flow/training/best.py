"""Keep the state of a run that had the lowest score, beside its newest ones."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.training.checkpoints import Checkpoints


class BestCheckpoint:
    """One checkpoint, replaced when a lower score comes.

    Steps that are done again after a kill have the scores that they had, to the bit, and replace nothing.

    Args:
        folder: made at the first score.
        identity: what the run is; see `Checkpoints`.
        is_writer: see `Checkpoints`.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], is_writer: bool = True):
        self._checkpoints = Checkpoints(folder, identity, keep=1, is_writer=is_writer)
        self._score = self._checkpoints.read_progress().get("score", math.inf)

    def offer(self, model, step: int, score: float) -> None:
        """Save the model where its score is the lowest yet."""
        if score < self._score:
            self._checkpoints.save(model, step, {"score": score})
            self._score = score

    def restore(self, model) -> int:
        """Bring the model to the best state and return its step; 0, and nothing is changed, where there was no score.

        Raises:
            ValueError: the checkpoint is damaged.
        """
        return self._checkpoints.restore(model)[0]
