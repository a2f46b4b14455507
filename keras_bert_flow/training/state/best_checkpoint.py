"""Best checkpoint: the state of a run with the lowest score, in addition to the newest checkpoints."""

import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.input_states import NOTHING_HELD, InputStates
from keras_bert_flow.training.state.checkpoints import Checkpoints, DamagedError

_logger = logging.getLogger(__name__)


class BestCheckpoint:
    """The checkpoint with the lowest score so far.

    Steps that are repeated after a kill have bitwise the same scores and replace nothing. If they are repeated with
    other settings, a best checkpoint among them is discarded, and the search restarts from there.

    Args:
        folder: created at the first score.
        identity: identity of the run; see `Checkpoints`.
        list_spans: returns the settings of the steps up to a given one; see `settings_history.list_spans`.
        is_needed: whether the best checkpoint is to be published. A damaged one then raises; otherwise it is discarded.
        is_writer, inputs: see `Checkpoints`.
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
        inputs: InputStates = NOTHING_HELD,
    ):
        self._folder, self._list_spans = folder, list_spans
        self._checkpoints = Checkpoints(folder, identity, keep=1, is_writer=is_writer, inputs=inputs)
        self._score = math.inf
        try:
            step, progress = self._checkpoints.find()
        except DamagedError:
            if is_needed:
                raise self._refusal() from None
            return  # `Checkpoints` has logged a warning
        if progress and progress["spans"] == list_spans(step):
            self._score = progress["score"]
        elif progress:
            _logger.warning("%s: step %d is done again with other settings; the best is sought anew.", folder, step)

    def offer(self, model, step: int, score: float) -> None:
        """Save the model if its score is the lowest so far."""
        if score < self._score:
            self._checkpoints.save(model, step, {"score": score, "spans": self._list_spans(step)})
            self._score = score

    def restore(self, model) -> int | None:
        """Restore the model from the best checkpoint and return its step; None, without a change, if there is none.

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
