"""Save and restore everything that training is, whole or not at all.

A checkpoint is a folder `step-00000500`: `state.safetensors` (weights, optimizer, dropout seeds) and
`train_state.json` (step, identity of the run, digests of the state and of itself). It is written under another name,
pushed to the disk, then renamed. Keras' own files leave out the dropout seeds and are overwritten in place.
"""

import hashlib
import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from keras_bert_flow.artifacts import canonical_json, file_digest, sync_folder
from keras_bert_flow.models.values import read_variable

STATE_FILE = "state.safetensors"
TRAIN_STATE_FILE = "train_state.json"
_logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one run, in one folder.

    Args:
        folder: made at the first save.
        identity: what the run is, as JSON; a checkpoint of another run is refused.
        keep: how many of the newest to keep.
        is_writer: False in a process that reads what another one of the run saves.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], keep: int = 2, is_writer: bool = True):
        self._is_writer = is_writer
        self._folder = folder
        self._identity = json.loads(json.dumps(identity))  # as it comes back from a file
        self._keep = keep

    def save(self, model, step: int, progress: Mapping[str, Any]) -> None:
        """Save the state after `step` steps; `progress` is any JSON that should come back with it.

        Raises:
            ValueError: a weight is not a number.
            OSError: the disk is full, or the place cannot be written.
        """
        state = _read_state(model)
        _check_finite(state, step)
        if not self._is_writer:
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._folder / f".{uuid.uuid4().hex}.tmp"
        temporary.mkdir()
        try:
            save_file(state, temporary / STATE_FILE)
            facts = {
                "step": step,
                "identity": self._identity,
                "progress": dict(progress),
                "state_sha256": file_digest(temporary / STATE_FILE),
            }
            facts["sha256"] = _digest(facts)
            (temporary / TRAIN_STATE_FILE).write_text(json.dumps(facts, indent=1), encoding="utf-8")
            sync_folder(temporary)
            final = self._folder / f"step-{step:08d}"
            shutil.rmtree(final, ignore_errors=True)  # damaged, or of the same step before its evaluation
            os.rename(temporary, final)
        except SafetensorError as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise OSError(f"A checkpoint must be written whole. Received: {self._folder}: {error}.") from None
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(self._folder)
        self._prune(final)

    def restore(self, model) -> tuple[int, dict[str, Any]]:
        """Bring the model to the newest whole checkpoint, and return (step, progress); (0, {}) where there is none.

        Raises:
            ValueError: every checkpoint is damaged, or they are of another run, or of another model.
        """
        for folder, facts, state in self._read():
            _write_state(model, state, folder)
            return facts["step"], facts["progress"]
        if self._list():
            raise ValueError(
                f"A run must have one whole checkpoint to go on from. Received: {self._folder}, all damaged. "
                "Remove the folder to start again."
            )
        return 0, {}

    def read_progress(self) -> dict[str, Any]:
        """Return what was saved as `progress` with the newest whole checkpoint; empty where there is none.

        Raises:
            ValueError: it is of another run.
        """
        return next((facts["progress"] for _, facts, _ in self._read()), {})

    def _read(self) -> Iterator[tuple[Path, dict[str, Any], dict[str, np.ndarray]]]:
        """Read the whole checkpoints, the newest first."""
        for folder in self._list():
            try:
                facts, state = _read_checkpoint(folder)
            except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
                _logger.warning("Checkpoint %s is damaged (%s); trying the one before.", folder, error)
                continue
            self._check_identity(facts["identity"], folder)
            yield folder, facts, state

    def _check_identity(self, found: Mapping[str, Any], folder: Path) -> None:
        before, now = _flatten(found), _flatten(self._identity)
        names = sorted(name for name in {**before, **now} if before.get(name) != now.get(name))
        if names:
            changes = ", ".join(f"{name} ({before.get(name)}, now {now.get(name)})" for name in names)
            raise ValueError(
                f"A run must go on as it began. Received: {folder} with another {changes}. "
                "Undo the change, or choose another output folder."
            )

    def _list(self) -> list[Path]:
        return sorted(self._folder.glob("step-*"), reverse=True)

    def _prune(self, newest: Path) -> None:
        folders = self._list()
        first = folders.index(newest)  # those after it are damaged, or the run would have gone on from them
        for folder in [*folders[:first], *folders[first + self._keep :], *self._folder.glob(".*.tmp")]:
            shutil.rmtree(folder, ignore_errors=True)


def _read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    facts = json.loads((folder / TRAIN_STATE_FILE).read_text(encoding="utf-8"))
    if facts.pop("sha256") != _digest(facts):
        raise ValueError(f"{TRAIN_STATE_FILE} has changed")
    if facts["state_sha256"] != file_digest(folder / STATE_FILE):
        raise ValueError(f"{STATE_FILE} has changed")
    return facts, load_file(folder / STATE_FILE)


def _digest(facts: Mapping[str, Any]) -> str:
    return hashlib.sha256(canonical_json(facts).encode()).hexdigest()


def _flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat = {}
    for name, value in values.items():
        flat |= _flatten(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return flat


def _check_finite(state: Mapping[str, np.ndarray], step: int) -> None:
    names = [name for name, array in state.items() if array.dtype.kind == "f" and not np.isfinite(array).all()]
    if names:
        raise ValueError(
            f"Weights must be numbers. Received: {', '.join(names)}, not so at step {step}. Lower the learning rate."
        )


def _list_variables(model) -> dict[str, Any]:
    """Name every variable that training changes, metrics aside: they start anew with every stretch of steps."""
    groups = {
        "model": (*model.trainable_variables, *model.non_trainable_variables),  # the latter hold the dropout seeds
        "optimizer": model.optimizer.variables,
    }
    named = [(f"{group}/{variable.path}", variable) for group, variables in groups.items() for variable in variables]
    variables = dict(named)
    if len(variables) != len(named):
        raise ValueError(f"Variables must have paths of their own. Received: {sorted(path for path, _ in named)}.")
    return variables


def _read_state(model) -> dict[str, np.ndarray]:
    return {path: _to_numpy(variable) for path, variable in _list_variables(model).items()}


def _to_numpy(variable) -> np.ndarray:
    return np.ascontiguousarray(read_variable(variable)).reshape(variable.shape)


def _write_state(model, state: Mapping[str, np.ndarray], folder: Path) -> None:
    variables = _list_variables(model)
    differing = sorted(_list_differences(variables, state))
    if differing:
        raise ValueError(
            f"A checkpoint must fit the model. Received: {folder}, which differs in {', '.join(differing)}."
        )
    for path, variable in variables.items():
        variable.assign(state[path])


def _list_differences(wanted: Mapping[str, Any], found: Mapping[str, np.ndarray]) -> Iterator[str]:
    for path in {*wanted, *found}:
        shapes = [tuple(array[path].shape) if path in array else None for array in (wanted, found)]
        if shapes[0] != shapes[1]:
            yield f"{path} (model {shapes[0]}, checkpoint {shapes[1]})"
