"""Hyperparameter search: search spaces, and the Optuna study, stored in a file so that a killed search resumes.

`flows` runs the trials. Without Keras and without Prefect.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import Dimension, TuningConfig
from keras_bert_flow.files.documents import parse_yaml

# The search space: parsed from options, checked by the configuration's own rules, and sampled.

INNER_SHARE = 0.618  # of a range: gives a fractional value, which no integer setting accepts
# Settings of storage and monitoring, which the search sets itself or which do not affect the objective.
NOT_SEARCHED = ("tuning", "runs", "name", "loggers", "beam", "distribution", "backend", "evaluation")
SEARCHES = ("finetuning.grid", "finetuning.label_counts", "finetuning.compare_random")


def read_dimension(option: str) -> tuple[str, dict[str, Any]]:
    """Parse `setting=low..high`, `setting=low..high:log` or `setting=a,b,c`.

    Raises:
        ValueError: `option` has none of these forms.
    """
    name, _, text = option.partition("=")
    bounds, colon, scale = text.partition(":")
    low, dots, high = bounds.partition("..")
    try:
        if not (name and text) or (dots and colon and scale != "log"):
            raise ValueError("neither")
        if not dots:
            return name, {"choices": parse_yaml(f"[{text}]")}
        return name, {"low": parse_yaml(low), "high": parse_yaml(high), "log": bool(colon)}
    except ValueError:
        raise ValueError(
            f"--space must read setting=low..high, setting=low..high:log or setting=a,b,c. Received: {option}. "
            "Try --space finetuning.learning_rate=1e-5..1e-3:log"
        ) from None


def read_tuning(tuning: TuningConfig | None, options: Sequence[str], trials: int | None) -> TuningConfig:
    """Return the section `tuning`, overridden by command-line options.

    Raises:
        ValueError: there is no search space, or a range or number is invalid.
    """
    values = (tuning or TuningConfig()).model_dump(exclude_unset=True)
    values["space"] = dict(values.get("space", {}))
    for option in options:
        name, dimension = read_dimension(option)
        values["space"][name] = dimension
    read = make_config(TuningConfig, values | ({} if trials is None else {"trials": trials}), "tuning")
    if not read.space:
        raise ValueError(
            "A search must have a space. Received: neither `tuning.space` nor --space. "
            "Try --space finetuning.learning_rate=1e-5..1e-3:log"
        )
    return read


def check_space(tuning: TuningConfig, objective: str, load: Callable[[Sequence[str]], Any]) -> None:
    """Check that the configuration accepts the search space: each setting at and within its bounds, and each choice.

    Args:
        objective: the objective of the search.
        load: loads the configuration with `setting=value` overrides, and raises ValueError for an invalid one.
    Raises:
        ValueError: a setting is unknown, does not accept a value, or does not affect the objective.
    """
    for name, dimension in tuning.space.items():
        is_of_task = name.split(".")[0] in ("task", "finetuning")
        if name.split(".")[0] in NOT_SEARCHED or name in SEARCHES or (is_of_task and objective == "held_out_loss"):
            raise ValueError(
                f"A search must be over settings that change its objective. Received: {name}, with {objective}. "
                "Leave it out."
            )
        values: Sequence[Any] = dimension.choices or ()
        if dimension.choices is None:
            low, high = dimension.bounds
            values = (low, high) if dimension.is_whole else (float(low), low + (high - low) * INNER_SHARE, float(high))
        for value in values:
            load(write_overrides({name: value}))


def draw(trial: optuna.Trial, space: Mapping[str, Dimension]) -> dict[str, Any]:
    """Sample a value for each setting; a choice that Optuna cannot store, such as a list, is stored as JSON."""
    values: dict[str, Any] = {}
    for name, dimension in space.items():
        if dimension.choices is not None:
            values[name] = trial.suggest_categorical(name, [*map(_store, dimension.choices)])
            continue
        low, high = dimension.bounds
        if dimension.is_whole:
            values[name] = trial.suggest_int(name, int(low), int(high), log=dimension.log)
        else:
            values[name] = trial.suggest_float(name, float(low), float(high), log=dimension.log)
    return read_params(values, space)


def write_overrides(values: Mapping[str, Any]) -> list[str]:
    """Format sampled values for `--set`."""
    is_plain = {name: isinstance(value, str) and parse_yaml(value) == value for name, value in values.items()}
    return [f"{name}={value if is_plain[name] else json.dumps(value)}" for name, value in values.items()]


def read_params(params: Mapping[str, Any], space: Mapping[str, Dimension]) -> dict[str, Any]:
    """Return the values of a stored trial's parameters, in the order of the space."""
    values = {name: params[name] for name in space if name in params}
    for name, stored in values.items():
        choices = space[name].choices
        if choices is not None:
            values[name] = next(value for value in choices if _store(value) == stored)
    return values


def _store(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | tuple | dict) else value


STUDY_FILE, STUDY = "study.journal", "search"
FAILURE = "failure"  # attribute of a failed trial
DIRECTIONS = {"dev_score": StudyDirection.MAXIMIZE, "held_out_loss": StudyDirection.MINIMIZE}


class Search:
    """An Optuna study and its trials, for one process at a time.

    The sampled values depend on the seed and the ended trials, not on how often the search was interrupted.

    Args:
        folder: folder of the study.
        tuning: settings of the search.
        objective: `dev_score` or `held_out_loss`.
    """

    def __init__(self, folder: Path, tuning: TuningConfig, objective: str):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.path, self._tuning = folder / STUDY_FILE, tuning
        if self.path.is_file():  # a line left half-written by a kill, to which the next line would be appended
            os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)
        # The caller locks the folder, and a lock file left by a kill would block the search.
        held: Any = SimpleNamespace(acquire=lambda: True, release=lambda: None)
        storage = JournalStorage(JournalFileBackend(str(self.path), lock_obj=held))
        pruner = optuna.pruners.MedianPruner(n_startup_trials=tuning.startup_trials)
        self._study = optuna.create_study(
            storage=storage,
            study_name=STUDY,
            direction=DIRECTIONS[objective],
            pruner=pruner if tuning.pruning else optuna.pruners.NopPruner(),
            load_if_exists=True,
        )
        for stale in self._study.get_trials(states=(TrialState.RUNNING,)):
            self._study.tell(stale.number, state=TrialState.FAIL)
            if stale.params.keys() == tuning.space.keys():
                self._study.enqueue_trial(stale.params)

    def list_ended(self) -> list[FrozenTrial]:
        """Return the trials that have ended: complete, pruned or failed, but not killed."""
        return self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))

    def begin_trial(self) -> tuple[optuna.Trial, dict[str, Any]]:
        """Return a trial and its values: those of a killed trial, or newly sampled ones."""
        place = len(self.list_ended())
        digest = hashlib.sha256(f"{self._tuning.seed}:{place}".encode()).digest()
        seed = int.from_bytes(digest[:4], "big")
        self._study.sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=self._tuning.startup_trials)
        trial = self._study.ask()
        return trial, draw(trial, self._tuning.space)

    def complete(self, trial: optuna.Trial, value: float) -> None:
        self._study.tell(trial, value)

    def prune(self, trial: optuna.Trial, failure: str | None = None) -> None:
        """Record a trial as pruned, also one that failed: the sampler learns from it, and would ignore a failed trial.

        Args:
            failure: why the trial failed, if it did.
        """
        if failure is not None:
            trial.set_user_attr(FAILURE, failure)
        self._study.tell(trial, state=TrialState.PRUNED)

    def rank(self) -> list[tuple[int, float, Mapping[str, Any]]]:
        """Return (number among the ended trials, value, settings) of the complete trials, best first."""
        sign = -1 if self._study.direction == StudyDirection.MAXIMIZE else 1
        rows = [
            (place, trial.value, read_params(trial.params, self._tuning.space))
            for place, trial in enumerate(self.list_ended(), 1)
            if trial.state == TrialState.COMPLETE and trial.value is not None
        ]
        return sorted(rows, key=lambda row: (sign * row[1], row[0]))
