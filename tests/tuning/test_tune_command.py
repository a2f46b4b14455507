"""`kbf tune` with trials of this file's own: what is printed beside what Optuna reads, and what is refused."""

import itertools
import math
import sys

import optuna
import pytest
import yaml
from optuna.storages.journal import JournalFileBackend

from flows import trial as trials
from keras_bert_flow.cli import main

RATE = "finetuning.learning_rate"


@pytest.fixture
def tune(tiny_config, monkeypatch, capsys):
    """Return a function that runs `kbf tune` in the folder of the tiny configuration: (status, output, errors)."""
    monkeypatch.chdir(tiny_config.parent)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setenv("KBF_PROGRESS", "on")

    def run(*options):
        monkeypatch.setattr(sys, "argv", ["kbf", "tune", tiny_config.name, *options])
        try:
            status = main() or 0
        except SystemExit as ended:
            status = ended.code
        said = capsys.readouterr()
        return status, said.out.splitlines(), said.err.splitlines()

    return run


def measure(config, objective, on_line, report):
    """Rise to 1 at a rate of 1e-3 in three epochs, and fail at a high one."""
    rate = config.finetuning.learning_rate
    if rate > 5e-3:
        raise ValueError("The loss must be a number.\nReceived: nan.")
    score = 1 - abs(math.log10(rate) + 3) / 10
    for epoch in (1, 2, 3):
        report(epoch, score * epoch / 3)
    return score


def load_study(folder):
    (path,) = folder.glob("runs/tuning/*/study.journal")
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    return optuna.load_study(study_name=None, storage=storage)


def test_command_says_what_the_study_has(tune, tiny_config, monkeypatch):
    begun = itertools.count(1)

    def measure_or_fail(*arguments):
        if next(begun) == 2:  # whatever rate a release of Optuna draws
            raise ValueError("The loss must be a number.\nReceived: nan.")
        return measure(*arguments)

    monkeypatch.setattr(trials, "run_trial", measure_or_fail)
    options = ("--space", f"{RATE}=1e-5..5e-3:log", "--set", "tuning.startup_trials=3", "--set", "name=mine")
    status, said, errors = tune(*options, "--trials", "8")
    assert status == 0
    study = load_study(tiny_config.parent)
    found = [("FAIL" if trial.user_attrs else trial.state.name, trial.params[RATE]) for trial in study.trials]
    assert {state for state, _ in found} == {"COMPLETE", "PRUNED", "FAIL"}
    for place, (state, rate) in enumerate(found, 1):
        begin, end = said[2 * place - 2 : 2 * place]
        assert begin == f"trial {place} of 8: {RATE}={rate}"
        words = {"COMPLETE": "dev accuracy 0.", "PRUNED": "pruned at epoch 1, dev accuracy 0.", "FAIL": "failed: The"}
        assert end.startswith(f"trial {place} of 8: {words[state]}")
    table = [line.split() for line in said if line.rstrip().endswith(f"{RATE}={study.best_params[RATE]}")]
    best = [str(study.best_trial.number + 1), f"{study.best_value:.4f}", "--set", f"{RATE}={study.best_params[RATE]}"]
    assert table[-1] == best
    assert "The dev table chose these settings" in said[-1] and said[-1].endswith("--set task.extra_dev.test=FILE")
    following = f" run {tiny_config.name} --set tuning.startup_trials=3 --set name=mine {' '.join(best[2:])}"
    assert errors[-1].startswith("Next: ") and errors[-1].endswith(following)

    status, said, _ = tune(*options, "--trials", "9")  # more of the same search
    assert status == 0 and said[0] == "8 of 9 trials have ended before." and said[1].startswith("trial 9 of 9: ")
    assert len(load_study(tiny_config.parent).trials) == 9
    status, said, _ = tune(*options, "--trials", "9", "--set", f"task.extra_dev.test={tiny_config.parent}/dev.tsv")
    assert status == 0 and said[-1].endswith("a table that chose nothing: test.")


def test_search_whose_first_trials_all_fail_ends(tune, monkeypatch):
    monkeypatch.setattr(trials, "run_trial", measure)
    status, said, errors = tune("--space", f"{RATE}=0.1..0.5")
    assert status == 2 and len(said) == 6 and errors[-1] == "kbf: The loss must be a number. Received: nan."


def test_trials_leave_out_what_only_a_report_needs(tune, tiny_config, monkeypatch):
    seen = []

    def keep(config, objective, *_):
        seen.append((config.finetuning.compare_random, config.finetuning.seeds, objective))
        return 1.0

    monkeypatch.setattr(trials, "run_trial", keep)
    tuning = {"trials": 2, "space": {"finetuning.seeds": {"choices": [[1, 2], [3]]}}}
    tiny_config.write_text(yaml.safe_dump(yaml.safe_load(tiny_config.read_text()) | {"tuning": tuning}))
    assert tune()[0] == 0
    assert all(not compared and objective == "dev_score" for compared, _, objective in seen)
    assert {seeds for _, seeds, _ in seen} <= {(1, 2), (3,)}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "A search must have a space. Received: neither"),
        (("--space", "finetuning.rate=1..2"), "`finetuning.rate` is no known setting."),
        (("--space", f"{RATE}=1e-2..1e-4"), "A range must have low below high"),
        (("--space", "finetuning.epochs=0..4"), "Received: 0."),
        (("--space", "model.num_heads=2..3"), "`hidden_dim` must be divisible by `num_heads`."),
        (("--space", f"{RATE}"), "--space must read"),
        (("--space", "finetuning.seeds=[1"), "--space must read"),
        (("--space", f"{RATE}=1..2", "--set", "finetuning.grid={}"), "A search must go without `finetuning.grid`"),
        (("--space", f"{RATE}=1..2", "--set", "tuning.objective=held_out_loss"), "with held_out_loss"),
        (("--space", f"{RATE}=1..2", "--set", "task.dev=none.tsv"), "none.tsv"),
    ],
)
def test_wrong_input_is_refused_in_one_line_before_any_trial(tune, tiny_config, monkeypatch, options, said):
    monkeypatch.setattr(trials, "run_trial", lambda *_: pytest.fail("a trial began"))
    status, output, errors = tune(*options)
    lines = [line for line in errors if line.startswith("kbf: ") and ".precision is " not in line]
    assert status == 2 and output == [] and len(lines) == 1 and said in lines[0]
    assert not (tiny_config.parent / "runs" / "tuning").exists()


def test_trial_on_a_table_that_changed_is_not_in_the_study(tune, tiny_config, monkeypatch):
    def rewrite(*_):
        table = tiny_config.with_name("train.tsv")
        table.write_bytes(table.read_bytes())
        return 1.0

    monkeypatch.setattr(trials, "run_trial", rewrite)
    status, _, errors = tune("--space", f"{RATE}=1e-5..5e-3:log", "--trials", "2")
    assert status == 2 and "An input must not change" in errors[-1] and "train.tsv, changed since" in errors[-1]
    assert [trial.state.name for trial in load_study(tiny_config.parent).trials] == ["RUNNING"]
