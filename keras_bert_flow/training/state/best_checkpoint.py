"""Keep the state of a run that had the lowest score, beside its newest ones."""

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.training.state.checkpoints import Checkpoints, DamagedError

_logger = logging.getLogger(__name__)


class BestCheckpoint:
    """One checkpoint, replaced when a lower score comes.

    Steps that are done again after a kill have the scores that they had, to the bit, and replace nothing. Where they
    are done again with other settings, a best among them is forgotten, and sought from there on.

    Args:
        folder: made at the first score.
        identity: what the run is; see `Checkpoints`.
        list_spans: says with which settings the steps up to one were made; see `history.list_spans`.
        is_needed: whether the best is to be published; a damaged one is then refused, and otherwise forgotten.
        is_writer: see `Checkpoints`.
    Raises:
        ValueError: the checkpoint is damaged and needed.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, Any],
        list_spans: Callable[[int], list] = lambda step: [],
        is_needed: bool = False,
        is_writer: bool = True,
    ):
        self._folder, self._list_spans = folder, list_spans
        self._checkpoints = Checkpoints(folder, identity, keep=1, is_writer=is_writer)
        self._score = math.inf
        try:
            step, progress = self._checkpoints.find()
        except DamagedError:
            if is_needed:
                raise self._refusal() from None
            return  # the warning has been given
        if progress and progress["spans"] == list_spans(step):
            self._score = progress["score"]
        elif progress:
            _logger.warning("%s: step %d is done again with other settings; the best is sought anew.", folder, step)

    def offer(self, model, step: int, score: float) -> None:
        """Save the model where its score is the lowest yet."""
        if score < self._score:
            self._checkpoints.save(model, step, {"score": score, "spans": self._list_spans(step)})
            self._score = score

    def restore(self, model) -> int | None:
        """Bring the model to the best state and return its step; None, and nothing is changed, where there was none.

        Raises:
            ValueError: the checkpoint is damaged.
        """
        if self._score == math.inf:
            return None
        try:
            return self._checkpoints.restore(model)[0]
        except DamagedError:
            raise self._refusal() from None

    def _refusal(self) -> ValueError:
        return ValueError(
            f"The best checkpoint must be whole to be published. Received: {self._folder}, damaged. Publish the last "
            "model with pretraining.publish=last, or remove the folder: the best is then sought from here on."
        )
