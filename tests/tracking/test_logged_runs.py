"""Runs of the commands with both loggers: what they have is what `log.jsonl` and the results have, over kills."""

import os
import signal
import subprocess
import sys

import pytest
import yaml

from keras_bert_flow.files.documents import read_json
from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.loop.logs import read_log
from tests.oracles.tiny_model import write_tiny_model
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.tracking.mlflow_files import find_runs, read_history
from tests.tracking.wandb_files import read_offline_runs
from tests.training.separable_task import make_task_config, write_table

LOGGERS = ("mlflow", "wandb")
pytestmark = pytest.mark.any_backend


@pytest.mark.slow
def test_run_that_is_killed_goes_on_as_one_run(place):
    records = write_tiny_records(place / "records")
    config = make_tiny_config(total_steps=500, log_every_steps=20, checkpoint_every_steps=30, evaluate_every_steps=50)
    values = config.model_dump(mode="json") | {"loggers": [*LOGGERS], "backend": "torch"}
    (place / "c.yaml").write_text(yaml.safe_dump(values))
    command = (sys.executable, "-m", "keras_bert_flow", "pretrain", "--config", "c.yaml", "--records", str(records))
    command += ("--output", "out")
    child = subprocess.Popen(command, cwd=place, env=os.environ | {"KERAS_BACKEND": "torch"})
    wait_until(lambda: any(place.glob("store/*/*/metrics/held_out_masked_lm_loss")) or child.poll() is not None)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    subprocess.run(command, cwd=place, check=True, timeout=PATIENCE_SECONDS)

    log, metrics = read_log(place / "out"), read_json(place / "out" / "metrics.json")
    client, (run,) = find_runs(place)
    assert read_history(client, run) == [(line["step"], line["loss"]) for line in log]
    held_out = "held_out_masked_lm_loss"
    assert read_history(client, run, held_out) == [(line["step"], line[held_out]) for line in log if held_out in line]
    assert run.data.metrics["final_masked_lm_loss"] == metrics["masked_lm_loss"] and run.info.status == "FINISHED"
    assert run.data.tags["content_key"] == read_manifest(place / "out").key
    parts = read_offline_runs(place)
    assert {part["id"] for part in parts} == {run.data.tags["keras_bert_flow.run"]}
    steps = [step for part in parts for step, _ in part["history"]]
    assert steps == [line["step"] for line in log]
    published = sorted(path.name for path in (place / "out").iterdir())
    assert published == [
        "costs.jsonl",
        "events.out.tfevents.log",
        "log.jsonl",
        "manifest.json",
        "metrics.json",
        "model",
    ]


@pytest.mark.slow
def test_each_run_of_fine_tuning_is_logged(place):
    write_tiny_model(place / "model")
    for name, count in (("train", 20), ("dev", 8)):
        write_table(place / f"{name}.tsv", count, seed=0)
    config = make_task_config(place, epochs=2, seeds=(1, 2), compare_random=False)
    finetune(config.model_copy(update={"loggers": ("mlflow",)}), place / "model", place / "out", lambda line: None)
    client, runs = find_runs(place)
    key = read_manifest(place / "out").key
    assert key == read_manifest(finetune(config, place / "model", place / "plain", lambda line: None)).key
    for run, seed in zip(reversed(runs), (1, 2), strict=True):
        folder = place / "out" / "pretrained" / f"seed-{seed}"
        assert run.info.run_name == f"bert/finetuning/pretrained/seed-{seed}" and run.data.tags["content_key"] == key
        assert run.data.params["seed"] == str(seed) and run.data.params["finetuning.epochs"] == "2"
        assert read_history(client, run) == [(line["step"], line["loss"]) for line in read_log(folder)]
        assert run.data.metrics["final_score"] == read_json(folder / "run.json")["score"]


def test_logger_that_is_not_installed_is_refused_before_work(place, monkeypatch, capsys):
    from keras_bert_flow import installed
    from keras_bert_flow.cli import main

    find = installed.importlib.util.find_spec
    monkeypatch.setattr(installed.importlib.util, "find_spec", lambda name: None if name in LOGGERS else find(name))
    records = write_tiny_records(place / "records")
    arguments = ["--records", str(records), "--output", str(place / "out"), "--backend", "torch"]
    monkeypatch.setattr(sys, "argv", ["kbf", "pretrain", *arguments, "--set", "loggers=[mlflow, wandb]"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2 and not (place / "out").exists()
    assert capsys.readouterr().err.splitlines()[-1] == (
        "kbf: Packages that this needs must be installed. Received: mlflow, wandb, not installed. "
        "pip install 'keras-bert-flow[mlflow,wandb]'"
    )
