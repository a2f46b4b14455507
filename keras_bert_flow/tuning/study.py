"""The Optuna study of a search, stored in a file so that a killed search resumes with the trial that was running."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from keras_bert_flow.config.tuning import TuningConfig
from keras_bert_flow.tuning.space import draw, read_params

STUDY_FILE, STUDY = "study.journal", "search"
FAILURE = "failure"  # attribute of a failed trial
DIRECTIONS = {"dev_score": StudyDirection.MAXIMIZE, "held_out_loss": StudyDirection.MINIMIZE}


class _HeldLock:
    """A lock that does nothing: the caller locks the folder, and a lock file left by a kill would block the search."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        return


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
        _cut_unfinished_line(self.path)
        # Optuna's base class of locks is private
        storage = JournalStorage(JournalFileBackend(str(self.path), lock_obj=_HeldLock()))  # type: ignore[arg-type]
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

    def prune(self, trial: optuna.Trial) -> None:
        self._study.tell(trial, state=TrialState.PRUNED)

    def fail(self, trial: optuna.Trial, failure: str) -> None:
        """Record a failure as a pruned trial, from which the sampler learns; it would ignore a failed trial."""
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


def _cut_unfinished_line(path: Path) -> None:
    """Truncate a line left half-written by a kill, to which the next line would be appended."""
    if path.is_file():
        content = path.read_bytes()
        os.truncate(path, content.rfind(b"\n") + 1)
