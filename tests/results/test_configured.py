"""A configuration stands for the model that its newest finished run has made, and says which that is."""

import json
import os
import subprocess
import sys

import pytest

import keras_bert_flow as kbf
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.files.paths import is_configuration
from keras_bert_flow.results.choosing import find_model
from keras_bert_flow.results.manifest import manifest_digest, read_manifest
from tests.oracles.tiny_model import write_tiny_model
from tests.patience import PATIENCE_SECONDS
from tests.results.conftest import publish_folder

YAML = "name: mine\ntask: {train: train.tsv, dev: dev.tsv}\n"


def publish_run(folder, key, scores, age, yaml=YAML):
    """Publish a fine-tuning with a score for each seed, and the report of it."""
    finetuned, report = folder / "runs" / "finetuning" / key, folder / "runs" / "evaluation" / f"e{key}"
    files = {}
    for seed, score in scores.items():
        model = write_tiny_model(folder / "made" / key / str(seed))
        names = [path.name for path in model.iterdir()]
        files |= {f"pretrained/seed-{seed}/model/{name}": (model / name).read_bytes() for name in names}
        files[f"pretrained/seed-{seed}/run.json"] = json.dumps({"start": "pretrained", "seed": seed, "score": score})
    publish_folder(finetuned, "finetuning", key, {}, {}, files)
    (folder / "then.yaml").write_text(yaml)
    config = load_config(folder / "then.yaml").model_dump(mode="json")
    publish_folder(
        report,
        "evaluation",
        f"e{key}",
        config,
        {"finetuned": manifest_digest(read_manifest(finetuned))},
        {"report.md": key},
    )
    os.utime(report / "manifest.json", (age, age))
    return finetuned


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(YAML)
    return tmp_path


def test_the_best_seed_of_the_newest_run_is_taken(place, caplog):
    publish_run(place, "f1", {1: 0.9}, 1000)
    newest = publish_run(place, "f2", {1: 0.5, 2: 0.75, 3: 0.75}, 2000)
    publish_run(place, "f3", {1: 1.0}, 3000, YAML.replace("mine", "other"))
    found = find_model("mine.yaml")
    assert found.resolve() == newest / "pretrained" / "seed-2" / "model"
    assert "the best of 3 on dev (0.75)." in caplog.text


def test_what_has_changed_since_is_said(place, caplog):
    publish_run(place, "f1", {1: 0.9}, 1000)
    (place / "mine.yaml").write_text(f"{YAML}model: {{size: mini}}\nfinetuning: {{epochs: 9}}\n")
    find_model("mine.yaml")
    assert "made with another model, finetuning." in caplog.text


def test_without_a_finished_run_it_is_told_how_to_make_one(place):
    with pytest.raises(FileNotFoundError, match=r"Received: mine.yaml, and none of `name: mine` in runs. kbf run mine"):
        find_model("mine.yaml")
    with pytest.raises(FileNotFoundError, match=r"must be a file. Received: none.yaml"):
        find_model("none.yaml")
    (place / "folder.yaml").mkdir()
    assert [is_configuration(name) for name in ("mine.yaml", "folder.yaml", "model")] == [True, False, False]


@pytest.mark.slow
def test_commands_and_load_take_it(place):
    publish_run(place, "f1", {1: 0.9}, 1000)
    assert [answer["label"] for answer in kbf.load("mine.yaml").predict(["a b"])] == ["no"]
    command = [sys.executable, "-m", "keras_bert_flow", "predict"]
    for arguments in (
        ["mine.yaml", "a b"],
        ["--model", "mine.yaml", "a b"],
        ["runs/finetuning/f1/pretrained/seed-1/model", "a b"],
    ):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert json.loads(done.stdout)["label"] == "no", done.stderr
    for arguments in (["a fine film"], []):
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
        assert done.returncode == 2 and "A model must be named" in done.stderr
