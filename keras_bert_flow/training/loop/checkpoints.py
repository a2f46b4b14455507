"""Atomic training checkpoints: the newest ones to resume from, and the best one to publish.

A checkpoint is a folder `step-00000500`: `state.safetensors` (weights, optimizer, dropout seeds) and
`train_state.json` (step, identity of the run, digests of the state and of itself). It is written under another name,
synced to disk, then renamed. Keras' own files lack the dropout seeds and are overwritten in place.
"""

import hashlib
import json
import logging
import math
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.conversion.codecs.safetensors_file import StoredTensors, open_tensors
from keras_bert_flow.files.documents import read_json
from keras_bert_flow.files.inputs import NOTHING_HELD, InputStates
from keras_bert_flow.results.artifacts import canonical_json, file_digest, follow_umask, sync_folder
from keras_bert_flow.training.loop.identity import add_change, list_changes

STATE_FILE = "state.safetensors"
TRAIN_STATE_FILE = "train_state.json"
REPLACED = ".replaced"
_FACTS = {
    "step": int,
    "identity": dict,
    "settings": dict,
    "history": list,
    "progress": dict,
    "state_sha256": str,
    "sha256": str,
}
NAME = re.compile(rf"step-(\d+)({re.escape(REPLACED)})?")
_logger = logging.getLogger(__name__)


class DamagedError(ValueError):
    """All checkpoints are damaged."""


class Checkpoints:
    """The checkpoints of one run, in one folder.

    Args:
        folder: created at the first save.
        identity: identity of the run, as JSON; a checkpoint of another run is refused.
        keep: number of newest checkpoints to keep.
        settings: settings that may change during the run and affect the result, as JSON; see `identity.list_spans`.
        is_writer: False in a process that only reads the checkpoints of another process of the run.
        inputs: states of what the run reads. Nothing is saved once they have changed, so the identity of a checkpoint
            names what it was made of.
    Attributes:
        settings: the argument, as it is read back.
        history: other settings of earlier steps, from the checkpoint found last.
    """

    def __init__(
        self,
        folder: Path,
        identity: Mapping[str, Any],
        keep: int = 2,
        settings: Mapping[str, Any] | None = None,
        is_writer: bool = True,
        inputs: InputStates = NOTHING_HELD,
    ):
        self._is_writer, self._inputs = is_writer, inputs
        self._folder = folder
        self._identity, self.settings = json.loads(json.dumps([identity, settings or {}]))  # as when read back
        self._keep = keep
        self._damaged: set[Path] = set()
        self.history: list = []

    def save(self, model, step: int, progress: Mapping[str, Any]) -> None:
        """Save the state after `step` steps; `progress` is any JSON to restore with it.

        Raises:
            ValueError: a weight is NaN or infinite, or an input has changed.
            OSError: the disk is full, or the folder cannot be written; older checkpoints are unchanged.
        """
        state = {
            path: np.ascontiguousarray(read_variable(variable)).reshape(variable.shape)
            for path, variable in _list_variables(model).items()
        }
        names = [name for name, array in state.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]
        if names:
            raise ValueError(
                f"Weights must be numbers. Received: {', '.join(names)}, not so at step {step}. Lower the learning "
                "rate."
            )
        self._inputs.check()
        if not self._is_writer:
            return
        facts = {
            "step": step,
            "identity": self._identity,
            "settings": self.settings,
            "history": self.history,
            "progress": dict(progress),
        }
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            final = self._write(state, facts)
        except (OSError, SafetensorError) as error:
            reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
            raise OSError(
                f"A checkpoint must be written whole. Received: {self._folder}, at step {step:,}: {reason}. "
                "Fix that and run again; earlier checkpoints are unchanged."
            ) from None
        self._prune(final)

    def find(self) -> tuple[int, dict[str, Any]]:
        """Return (step, progress) of the newest undamaged checkpoint; (0, {}) if there is none.

        Raises:
            DamagedError: every checkpoint is damaged.
            ValueError: it belongs to another run.
        """
        _, facts = self._find()
        return facts["step"], facts["progress"]

    def restore(self, model) -> tuple[int, dict[str, Any]]:
        """Restore the model from the newest undamaged checkpoint; return (step, progress), or (0, {}) if there is none.

        Raises:
            DamagedError: every checkpoint is damaged.
            ValueError: it belongs to another run, or to another model.
        """
        folder, facts = self._find()
        if folder is not None:
            _write_state(model, open_tensors(folder / STATE_FILE), folder)
        return facts["step"], facts["progress"]

    def _write(self, state: Mapping[str, np.ndarray], facts: dict[str, Any]) -> Path:
        """Write a checkpoint atomically: under a temporary name, synced to disk, then renamed."""
        temporary = self._folder / f".{uuid.uuid4().hex}.tmp"
        try:
            temporary.mkdir()
            save_file(dict(state), temporary / STATE_FILE)
            follow_umask(temporary / STATE_FILE)
            facts["state_sha256"] = file_digest(temporary / STATE_FILE)
            facts["sha256"] = _digest(facts)
            (temporary / TRAIN_STATE_FILE).write_text(json.dumps(facts, indent=1), encoding="utf-8")
            sync_folder(temporary)
            final = self._folder / f"step-{facts['step']:08d}"
            if final.exists():  # damaged, or saved at the same step before its evaluation
                replaced = final.with_name(final.name + REPLACED)
                shutil.rmtree(replaced, ignore_errors=True)
                os.rename(final, replaced)  # can be found under this name after a kill at this point
            os.rename(temporary, final)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(self._folder)
        self._damaged.discard(final)
        return final

    def _find(self) -> tuple[Path | None, dict[str, Any]]:
        """Return the newest undamaged checkpoint and its verified facts."""
        for folder in self._list():
            try:
                facts = _read_facts(folder)
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                if folder not in self._damaged:
                    _logger.warning("Checkpoint %s is damaged (%s); trying the one before.", folder, error)
                self._damaged.add(folder)
                continue
            if others := list_changes(facts["identity"], self._identity):
                raise ValueError(
                    f"A run must go on as it began. Received: {folder} with another {others}. "
                    "Undo the change, or choose another output folder."
                )
            changes = list_changes(facts["settings"], self.settings)
            history = add_change(facts["history"], facts["step"], facts["settings"], self.settings)
            if changes and history != self.history:  # else already logged
                _logger.warning("Going on from step %d with another %s.", facts["step"], changes)
            self.history = history
            return folder, facts
        if self._list():
            raise DamagedError(
                f"A run must have one whole checkpoint to go on from. Received: {self._folder}, all damaged. "
                "Remove the folder to start again."
            )
        return None, {"step": 0, "progress": {}}

    def _list(self) -> list[Path]:
        """List the checkpoints, the newest first; a replaced one follows its replacement."""
        found = [(NAME.fullmatch(path.name), path) for path in self._folder.glob("step-*")]
        numbered = [(int(match[1]), not match[2], path) for match, path in found if match]
        return [path for *_, path in sorted(numbered, reverse=True)]

    def _prune(self, newest: Path) -> None:
        """Remove all but the newest undamaged checkpoints.

        Those after `newest` are damaged, else the run would have resumed from them.
        """
        folders = self._list()
        whole = [path for path in folders if path not in self._damaged and not path.name.endswith(REPLACED)]
        first = whole.index(newest)
        kept = whole[first : first + self._keep]
        for folder in [*(path for path in folders if path not in kept), *self._folder.glob(".*.tmp")]:
            shutil.rmtree(folder, ignore_errors=True)


def _read_facts(folder: Path) -> dict[str, Any]:
    """Read the facts of a checkpoint, and verify the digests of its files."""
    facts = read_json(folder / TRAIN_STATE_FILE)
    if not isinstance(facts, dict) or any(not isinstance(facts.get(name), kind) for name, kind in _FACTS.items()):
        raise ValueError(f"{TRAIN_STATE_FILE} is no state of a training")
    if facts.pop("sha256") != _digest(facts) or facts["step"] < 0:
        raise ValueError(f"{TRAIN_STATE_FILE} has changed")
    open_tensors(folder / STATE_FILE)  # reject a file that is longer than its header says, before hashing it
    if facts["state_sha256"] != file_digest(folder / STATE_FILE):
        raise ValueError(f"{STATE_FILE} has changed")
    return facts


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(facts).encode()).hexdigest()


def _list_variables(model) -> dict[str, Any]:
    """Return path → variable for all training state, except metrics, which are reset in every interval."""
    fixed = {id(variable) for variable in (model.list_fixed_weights() if hasattr(model, "list_fixed_weights") else ())}
    groups = {  # the non-trainable variables include the dropout seeds
        "model": [
            variable
            for variable in (*model.trainable_variables, *model.non_trainable_variables)
            if id(variable) not in fixed
        ],
        "optimizer": model.optimizer.variables,
    }
    named = [(f"{group}/{variable.path}", variable) for group, variables in groups.items() for variable in variables]
    variables = dict(named)
    if len(variables) != len(named):
        raise ValueError(f"Variables must have paths of their own. Received: {sorted(path for path, _ in named)}.")
    return variables


def _write_state(model, state: StoredTensors, folder: Path) -> None:
    variables = _list_variables(model)
    wanted = {path: tuple(variable.shape) for path, variable in variables.items()}
    differing = [
        f"{path} (model {wanted.get(path)}, checkpoint {state.shapes.get(path)})"
        for path in sorted({*wanted, *state})
        if wanted.get(path) != state.shapes.get(path)
    ]
    if differing:
        raise ValueError(
            f"A checkpoint must fit the model. Received: {folder}, which differs in {', '.join(differing)}."
        )
    state.check_finite()
    for path, variable in variables.items():
        variable.assign(state[path])


# Best checkpoint: the state of a run with the lowest score, in addition to the newest checkpoints.


class BestCheckpoint:
    """The checkpoint with the lowest score so far.

    Steps that are repeated after a kill have bitwise the same scores and replace nothing. If they are repeated with
    other settings, a best checkpoint among them is discarded, and the search restarts from there.

    Args:
        folder: created at the first score.
        identity: identity of the run; see `Checkpoints`.
        list_spans: returns the settings of the steps up to a given one; see `identity.list_spans`.
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
