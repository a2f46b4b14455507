"""A store of results: vocabulary and records as their stages make them, models as their manifests say."""

import json
import os
import shutil
from pathlib import Path

import pytest

from beam_jobs.build_records import build_records
from beam_jobs.build_vocabulary import build_vocabulary
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig, VocabularyConfig
from keras_bert_flow.results.artifacts import publishing
from keras_bert_flow.results.manifest import write_manifest
from keras_bert_flow.results.stages.keys import folder_digest

TEXT = "\n\n".join(f"The {noun} goes home. It sleeps there." for noun in ("cat", "dog", "bird", "wolf", "goat") * 3)
DAY = 86400.0


def publish_folder(folder: Path, stage: str, key: str, config: dict, inputs: dict, files: dict) -> Path:
    """Publish files, given as text or bytes, under a manifest, as a stage does."""
    with publishing(folder) as work:
        for name, content in files.items():
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_bytes(content.encode() if isinstance(content, str) else content)
        write_manifest(work, stage, key, config, inputs, {})
    return folder


def make_old(folder: Path, days: float) -> None:
    """Give every file of a folder the time that it would have had so many days ago."""
    for path in (folder, *folder.rglob("*")):
        stamp = path.lstat().st_mtime - days * DAY
        os.utime(path, (stamp, stamp))


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two vocabularies, and of the first one records, two models of these and one fine-tuned of the second."""
    store = tmp_path_factory.mktemp("store") / "runs"
    text = store.parent / "text.txt"
    text.write_text(TEXT)
    corpus = CorpusConfig(input=(str(text),))
    for name, size in (("v1", 60), ("v2", 70)):
        build_vocabulary(corpus, VocabularyConfig(size=size), store / "vocabulary" / name, ())
    records = store / "records" / "r1"
    rule = RecordsConfig(sequence_length=16, max_predictions=3, held_out_fraction=0.2, shards=1)
    build_records(corpus, rule, store / "vocabulary" / "v1" / "vocab.txt", False, records, 1, ())
    settings = PipelineConfig().model_dump(mode="json", include={"model", "pretraining", "seed", "name"})
    for key, steps, loss in (("p1", 10, 5.0), ("p2", 20, 4.0)):
        settings["pretraining"]["total_steps"] = steps
        files = {"model/config.json": json.dumps({"steps": steps}), "model/model.safetensors": key}
        files["metrics.json"] = json.dumps({"masked_lm_loss": loss, "seconds": 1.0})
        inputs = {"records": folder_digest(records)}
        publish_folder(store / "pretraining" / key, "pretraining", key, settings, inputs, files)
    inputs = {"model": folder_digest(store / "pretraining" / "p2" / "model")}
    files = {"pretrained/seed-1/run.json": json.dumps({"score": 0.75, "seconds": 2.0})}
    publish_folder(store / "finetuning" / "f1", "finetuning", "f1", {"task": {"name": "films"}}, inputs, files)
    return store


@pytest.fixture
def store(made_once: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    shutil.copytree(made_once, tmp_path / "runs", symlinks=True)
    return tmp_path / "runs"
