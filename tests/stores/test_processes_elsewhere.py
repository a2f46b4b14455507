"""Two processes of torchrun with an output in an object store: the first publishes, with the weights of a disk."""

import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import pytest
import yaml

from keras_bert_flow.results.manifest import COSTS
from keras_bert_flow.stores.fetching import OUTPUTS, cache_root
from keras_bert_flow.stores.publishing import made_at
from tests.distribution.processes import torch_address
from tests.object_store import BUCKET, read_bucket
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
OUTPUT = f"s3://{BUCKET}/runs/together"


@pytest.fixture
def train(tmp_path):
    """Return a function that pre-trains in two processes, and returns their status and lines."""
    records = write_tiny_records(tmp_path / "records")
    config = tmp_path / "config.yaml"
    values = make_tiny_config().model_dump(mode="json", include={"model", "pretraining", "seed"})
    short = {"sequence_length": values["model"]["max_positions"]}
    values["pretraining"]["batch_size"] = 4  # two processes share it
    values |= {"records": short | {"max_predictions": 2}, "finetuning": short}
    config.write_text(yaml.safe_dump(values))

    def run(output, launcher=("-m", "torch.distributed.run", "--nproc-per-node=2")):
        address = torch_address() if launcher else ()
        given = ("-m", "keras_bert_flow", "pretrain", "--backend", "torch", "--config", config, "--records", records)
        done = subprocess.run(
            [sys.executable, *launcher, *address, *map(str, given), "--output", str(output)],
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "torch", reason="torchrun starts them")
def test_first_process_alone_publishes(train, tmp_path, trouble, server, monkeypatch):
    status, lines = train(tmp_path / "disk")
    assert status == 0, lines
    status, lines = train(OUTPUT)
    assert status == 0, lines
    there = {key.removeprefix("runs/together/"): content for key, content in read_bucket(server[0]).items()}
    here = {str(path.relative_to(tmp_path / "disk")): path for path in (tmp_path / "disk").rglob("*") if path.is_file()}
    del here[COSTS]
    assert there.keys() == here.keys()
    assert there["model/model.safetensors"] == here["model/model.safetensors"].read_bytes()
    assert json.loads(there["manifest.json"])["key"] == json.loads(here["manifest.json"].read_text())["key"]
    assert not any((cache_root() / OUTPUTS).iterdir())
    monkeypatch.setenv("KBF_CACHE", str(tmp_path / "another machine"))
    trouble.seen.clear()
    status, lines = train(OUTPUT)
    assert status == 0 and not [method for method, _, _ in trouble.seen if method == "PUT"], lines


@pytest.mark.any_backend
@pytest.mark.slow
def test_processes_that_see_no_common_disk_are_refused(trouble, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    for together in (True, False):
        with pytest.raises(ValueError, match=f"made by one process.* Received: {OUTPUT}"), made_at(OUTPUT, together):
            pass
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    with pytest.raises(ValueError, match="made by one process"), made_at(OUTPUT):
        pass
    monkeypatch.setenv("RANK", "3")
    with made_at(OUTPUT, together=True) as place:
        assert place.name == "together" and place.parent.parent.parent == cache_root() / OUTPUTS
    assert not (cache_root() / OUTPUTS).exists()
