"""The real commands of every stage, in a folder full of modules of a user's with the names of ours."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.flows.conftest import ROOT
from tests.patience import PATIENCE_SECONDS
from tests.strangers import write_strangers

KBF = ("-P", "-c", "from keras_bert_flow.cli import main; main()")
WORKERS = "beam=[--direct_num_workers=2, --direct_running_mode=multi_processing]"


@pytest.mark.slow
def test_run_and_torchrun_import_ours(tiny_config: Path, tmp_path: Path):
    """The flow, its server, its stages and their Beam workers; then the processes that `torchrun` starts."""
    write_strangers(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PREFECT_HOME": str(tmp_path / "prefect")}

    def run(*arguments: str) -> str:
        command = (sys.executable, *arguments)
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(*KBF, "run", tiny_config.name, "--backend", "torch", "--set", WORKERS)
    (records,) = tmp_path.glob("runs/records/*")
    shutil.rmtree(tmp_path / "keras_bert_flow")  # by that name, Python is told to run it
    torchrun = ("-P", "-m", "torch.distributed.run", "--nproc-per-node=2", "-m", "keras_bert_flow")
    options = ("--config", tiny_config.name, "--records", str(records), "--output", "out", "--backend", "torch")
    assert "out" in run(*torchrun, "pretrain", *options).splitlines()
    (model,) = tmp_path.glob("runs/finetuning/*/pretrained/seed-1/model")
    assert "label" in run("-m", "keras_bert_flow", "predict", "--model", str(model), "--backend", "torch", "a cat")
