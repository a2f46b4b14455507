"""Save and restore everything that training is, whole or not at all.

A checkpoint is a folder `step-00000500`: `state.safetensors` (weights, optimizer, dropout seeds) and
`train_state.json` (step, identity of the run, sha256 of the state). It is written under another name, pushed to the
disk, then renamed. Keras' own files leave out the dropout seeds and are overwritten in place.
"""

import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from keras_bert_flow.artifacts import file_digest, sync_folder

STATE_FILE = "state.safetensors"
TRAIN_STATE_FILE = "train_state.json"
_logger = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one run, in one folder.

    Args:
        folder: made at the first save.
        identity: what the run is; a checkpoint of another run is refused.
        keep: how many of the newest to keep.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], keep: int = 2):
        self._folder = folder
        self._identity = dict(identity)
        self._keep = keep

    def save(self, model, step: int, progress: Mapping[str, Any]) -> None:
        """Save the state after `step` steps; `progress` is any JSON that should come back with it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = self._folder / f".{uuid.uuid4().hex}.tmp"
        temporary.mkdir()
        try:
            save_file(_read_state(model), temporary / STATE_FILE)
            facts = {
                "step": step,
                "identity": self._identity,
                "progress": dict(progress),
                "sha256": file_digest(temporary / STATE_FILE),
            }
            (temporary / TRAIN_STATE_FILE).write_text(json.dumps(facts, indent=1), encoding="utf-8")
            sync_folder(temporary)
            os.rename(temporary, self._folder / f"step-{step:08d}")
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync_folder(self._folder)
        self._prune()

    def restore(self, model) -> tuple[int, dict[str, Any]]:
        """Bring the model to the newest whole checkpoint, and return (step, progress); (0, {}) where there is none.

        Raises:
            ValueError: every checkpoint is damaged, or they are of another run.
        """
        folders = self._list()
        for folder in folders:
            try:
                facts = json.loads((folder / TRAIN_STATE_FILE).read_text(encoding="utf-8"))
                if facts["sha256"] != file_digest(folder / STATE_FILE):
                    raise ValueError("its sha256 differs")
                state = load_file(folder / STATE_FILE)
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
                _logger.warning("Checkpoint %s is damaged (%s); trying the one before.", folder, error)
                continue
            self._check_identity(facts["identity"], folder)
            _write_state(model, state, folder)
            return facts["step"], facts["progress"]
        if folders:
            raise ValueError(
                f"A run must have one whole checkpoint to go on from. Received: {self._folder}, all damaged. "
                "Remove the folder to start again."
            )
        return 0, {}

    def _check_identity(self, found: Mapping[str, Any], folder: Path) -> None:
        changed = [name for name in {**found, **self._identity} if found.get(name) != self._identity.get(name)]
        if changed:
            raise ValueError(
                f"A run must go on as it began. Received: {folder} with another {', '.join(sorted(changed))}. "
                "Undo the change, or choose another output folder."
            )

    def _list(self) -> list[Path]:
        return sorted(self._folder.glob("step-*"), reverse=True)

    def _prune(self) -> None:
        for folder in [*self._list()[self._keep :], *self._folder.glob(".*.tmp")]:
            shutil.rmtree(folder, ignore_errors=True)


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
    return np.ascontiguousarray(keras.ops.convert_to_numpy(variable.value)).reshape(variable.shape)


def _write_state(model, state: Mapping[str, np.ndarray], folder: Path) -> None:
    variables = _list_variables(model)
    differing = sorted(_list_differences(variables, state))
    if differing:
        raise ValueError(f"A checkpoint must fit the model. Received: {folder}, which differs in {', '.join(differing)}.")
    for path, variable in variables.items():
        variable.assign(state[path])


def _list_differences(wanted: Mapping[str, Any], found: Mapping[str, np.ndarray]) -> Iterator[str]:
    for path in {*wanted, *found}:
        shapes = [tuple(array[path].shape) if path in array else None for array in (wanted, found)]
        if shapes[0] != shapes[1]:
            yield f"{path} (model {shapes[0]}, checkpoint {shapes[1]})"
