"""A search by the command on a tiny model, killed within a trial, beside what Optuna reads in its file."""

import os
import re
import signal
import subprocess
import sys

import optuna
import pytest
import yaml
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from keras_bert_flow.files.documents import read_json
from keras_bert_flow.files.outputs import work_folder
from keras_bert_flow.results.manifest import read_manifest
from tests.patience import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow
TRIALS = 3
TUNING = {
    "trials": TRIALS,
    "startup_trials": 3,
    "space": {"finetuning.learning_rate": {"low": 1e-4, "high": 0.03, "log": True}},
}
ENDED = re.compile(r"trial (\d) of 3: dev accuracy (\d\.\d{4}) in .* s; the best is (\d\.\d{4}), of trial (\d)")


def load_study(folder):
    (path,) = folder.glob("runs/tuning/*/study.journal")
    storage = optuna.storages.JournalStorage(JournalFileBackend(str(path)))
    return optuna.load_study(study_name=None, storage=storage)


def test_search_that_is_killed_goes_on_with_its_trial(tiny_config):
    folder = tiny_config.parent
    values = yaml.safe_load(tiny_config.read_text()) | {"tuning": TUNING, "backend": "torch"}
    values["finetuning"] |= {"epochs": 6}
    tiny_config.write_text(yaml.safe_dump(values))
    command = (sys.executable, "-m", "keras_bert_flow", "tune", tiny_config.name)
    environment = os.environ | {"KERAS_BACKEND": "torch"}

    def wait_for(pattern):
        wait_until(lambda: any(folder.glob(f"runs/{pattern}")) or child.poll() is not None)

    with open(folder / "first.txt", "w") as output:
        child = subprocess.Popen(command, cwd=folder, env=environment, stdout=output)
        try:
            for pattern in ("records/*/manifest.json", "pretraining/*/manifest.json"):
                wait_for(pattern)
            wait_until(lambda: "trial 2 of 3" in (folder / "first.txt").read_text() or child.poll() is not None)
            wait_for("finetuning/.*.work/pretrained")  # the second trial is training
        finally:
            child.kill()
        assert child.wait() == -signal.SIGKILL
    asked = re.findall(r"trial \d of 3: (finetuning\S+)$", (folder / "first.txt").read_text(), re.MULTILINE)
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment | {"KBF_PROGRESS": "on"},  # which tells the next step
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"1 of 3 trials have ended before.\ntrial 2 of 3: {asked[1]}\n")
    ended = ENDED.findall((folder / "first.txt").read_text() + done.stdout)
    assert [place for place, *_ in ended] == ["1", "2", "3"]

    study = load_study(folder)
    complete = study.get_trials(states=(TrialState.COMPLETE,))
    assert [f"{trial.value:.4f}" for trial in complete] == [score for _, score, *_ in ended]
    assert f"{study.best_value:.4f}" == ended[-1][2] and complete[int(ended[-1][3]) - 1].params == study.best_params
    killed = study.get_trials(states=(TrialState.FAIL,))
    assert [trial.params for trial in killed] == [complete[1].params]
    best = f"--set finetuning.learning_rate={study.best_params['finetuning.learning_rate']}"
    assert done.stderr.splitlines()[-1].endswith(f"run {tiny_config.name} {best}")

    made = {}  # what each trial was: its settings and scores in the folders of results
    for path in folder.glob("runs/finetuning/*/manifest.json"):
        rate = read_manifest(path.parent).config["finetuning"]["learning_rate"]
        made[rate] = read_json(path.parent / "pretrained" / "seed-1" / "run.json")["score"]
        assert not work_folder(path.parent).exists()
    assert made == {trial.params["finetuning.learning_rate"]: trial.value for trial in complete}
    assert len([*folder.glob("runs/pretraining/*/manifest.json")]) == 1  # which all trials share
    steps = [[*trial.intermediate_values] for trial in complete]
    assert steps == [[1, 2, 3, 4, 5, 6]] * TRIALS
