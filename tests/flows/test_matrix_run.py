"""A matrix as the flow `bert-matrix`, on a real server, with real stages."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.commands import assert_refused, kbf
from tests.flows.conftest import ROOT
from tests.flows.test_local import processes_of
from tests.patience import PATIENCE_SECONDS, wait_until

MATRIX = {"over": {"seed": [1, 2], "finetuning.learning_rate": [1e-4, 1e-3]}, "at_once": 2}


@pytest.fixture
def many(tiny_config: Path) -> Path:
    values = yaml.safe_load(tiny_config.read_text()) | {"backend": "torch", "matrix": MATRIX}
    here = tiny_config.parent
    values["task"] |= {name: str(here / values["task"][name]) for name in ("train", "dev")}
    values |= {"runs": str(here / "runs"), "corpus": {"input": [str(here / "corpus.txt")], "lines": "sentences"}}
    tiny_config.write_text(yaml.safe_dump(values, sort_keys=False))
    return tiny_config


def start(config: Path, home: Path) -> subprocess.Popen:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "KERAS_BACKEND"))}
    return subprocess.Popen(
        (sys.executable, "-P", "-m", "keras_bert_flow", "run", config.name),
        cwd=config.parent,
        env=kept | {"PREFECT_HOME": str(home), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def count(folder: Path) -> int:
    return len([path for path in folder.glob("*/manifest.json") if not path.parent.name.startswith(".")])


@pytest.mark.slow
def test_runs_share_what_they_have_in_common_and_end_in_one_table(many, tmp_path_factory):
    home, runs = tmp_path_factory.mktemp("prefect"), many.parent / "runs"
    interrupted = start(many, home)
    wait_until(lambda: (runs / "pretraining").is_dir() or interrupted.poll() is not None)
    interrupted.send_signal(signal.SIGINT)
    interrupted.communicate(timeout=PATIENCE_SECONDS)
    assert interrupted.returncode == 130
    wait_until(lambda: not processes_of(home))

    said, _ = (again := start(many, home)).communicate(timeout=PATIENCE_SECONDS)
    assert again.returncode == 0, said
    table = (runs / "matrix.md").read_text()
    labels = [f"seed={seed}, finetuning.learning_rate={rate}" for seed in (1, 2) for rate in (0.0001, 0.001)]
    assert [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines()[2:6]] == labels
    assert table.strip() in said
    assert [count(runs / stage) for stage in ("records", "pretraining", "finetuning", "evaluation")] == [2, 2, 4, 4]
    assert not processes_of(home)


def test_every_run_is_checked_before_the_first(many):
    values = yaml.safe_load(many.read_text())
    values["matrix"] = {"over": {"finetuning.epochs": [1, -1]}}
    many.write_text(yaml.safe_dump(values))
    assert_refused(kbf("run", str(many)), "finetuning.epochs")
    values["matrix"] = {"over": {"task.dev": [values["task"]["dev"], "none.tsv"]}}
    many.write_text(yaml.safe_dump(values))
    assert_refused(kbf("run", str(many)), "none.tsv")
    assert not (many.parent / "runs").exists()
