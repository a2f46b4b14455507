"""The study of a search over kills, as Optuna reads it."""

import optuna
import pytest
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import TuningConfig
from keras_bert_flow.tuning import STUDY_FILE, Search

SPACE = {
    "finetuning.learning_rate": {"low": 1e-5, "high": 1e-2, "log": True},
    "model.num_layers": {"low": 1, "high": 4},
}
TRIALS = 12


def make_search(folder, objective="dev_score", **settings):
    return Search(folder, make_config(TuningConfig, {"space": SPACE, "startup_trials": 3} | settings, "x"), objective)


def load_study(folder):
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(folder / STUDY_FILE)))
    return optuna.load_study(study_name=None, storage=storage)


def measure(values):
    return values["model.num_layers"] - abs(values["finetuning.learning_rate"] - 1e-3)


def run(folder, stops=(), **settings):
    """Search to the end, in a new process's stead after each trial in `stops`; return the values of all trials."""
    search, drawn = make_search(folder, **settings), []
    while len(search.list_ended()) < TRIALS:
        trial, values = search.begin_trial()
        if len(drawn) in stops and drawn[-1:] != [values]:
            drawn.append(values)
            search = make_search(folder, **settings)
            continue
        drawn.append(values)
        search.complete(trial, measure(values))
    return drawn


def test_search_that_is_stopped_asks_for_the_same_trial_and_draws_the_same_after_it(tmp_path):
    for name in ("whole", "stopped"):
        (tmp_path / name).mkdir()
    whole = run(tmp_path / "whole")
    stopped = run(tmp_path / "stopped", stops=(0, 5))
    assert len({str(values) for values in whole}) == TRIALS
    assert stopped[0] == stopped[1] and stopped[5] == stopped[6]
    assert [values for place, values in enumerate(stopped) if place not in (0, 5)] == whole
    study = load_study(tmp_path / "stopped")
    states = [trial.state for trial in study.trials]
    assert states.count(TrialState.COMPLETE) == TRIALS and states.count(TrialState.FAIL) == 2
    assert study.best_value == max(map(measure, whole)) and study.best_params == max(whole, key=measure)


def test_search_of_a_model_learns_from_its_trials(tmp_path):
    drawn = run(tmp_path)
    assert sum(values["model.num_layers"] == 4 for values in drawn[3:]) > 9 / 4 * 1.5


def test_best_is_the_lowest_loss(tmp_path):
    search = make_search(tmp_path, objective="held_out_loss")
    for value in (3.0, 1.0, 2.0):
        search.complete(search.begin_trial()[0], value)
    assert [row[:2] for row in search.rank()] == [(2, 1.0), (3, 2.0), (1, 3.0)]
    assert load_study(tmp_path).best_value == 1.0


@pytest.mark.parametrize("pruning", [True, False])
def test_trial_below_the_median_is_pruned_after_those_at_random(tmp_path, pruning):
    search = make_search(tmp_path, pruning=pruning)
    pruned = []
    for first in (0.1, 0.6, 0.7, 0.5, 0.9):
        trial, _ = search.begin_trial()
        trial.report(first, 1)
        pruned.append(trial.should_prune())
        if pruned[-1]:
            search.prune(trial)
        else:
            search.complete(trial, first)
    assert pruned == [False, False, False, pruning, False]  # 0.5 is below the median of the three before it
    assert len(search.list_ended()) == 5 and len(search.rank()) == 5 - pruning


def test_failed_trial_has_ended_and_one_that_was_killed_has_not(tmp_path):
    search = make_search(tmp_path)
    search.prune(search.begin_trial()[0], "The loss must be a number.")
    search.begin_trial()
    again = make_search(tmp_path)
    assert len(again.list_ended()) == 1 and again.rank() == []
    assert load_study(tmp_path).trials[0].user_attrs == {"failure": "The loss must be a number."}


def test_values_that_fail_are_left(tmp_path):
    search, rates = make_search(tmp_path), []
    for _ in range(20):
        trial, values = search.begin_trial()
        rates.append(values["finetuning.learning_rate"])
        if rates[-1] > 1e-4:
            search.prune(trial, "The loss must be a number.")
        else:
            search.complete(trial, rates[-1])  # the best lies beside what fails
    assert sum(rate > 1e-4 for rate in rates[10:]) <= 5


def test_line_that_a_kill_left_half_written_is_cut_off(tmp_path):
    search = make_search(tmp_path)
    search.complete(search.begin_trial()[0], 1.0)
    with open(tmp_path / STUDY_FILE, "ab") as file:
        file.write(b'{"op_code":4,"wor')
    again = make_search(tmp_path)
    again.complete(again.begin_trial()[0], 2.0)
    assert [trial.value for trial in load_study(tmp_path).trials] == [1.0, 2.0]
