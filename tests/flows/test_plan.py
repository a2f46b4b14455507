"""`kbf run --plan` says what would run and how large it is, and runs nothing."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flows.estimates import SAMPLE_BYTES, estimate_finetuning, estimate_pretraining, estimate_tokens
from flows.plan import describe_plan, plan_stages
from flows.settling import settle_config
from flows.stages import records_stage, vocabulary_stage
from keras_bert_flow.records.publish import Contents, publish
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from tests.flows.conftest import ROOT
from tests.patience import PATIENCE_SECONDS

STAGES = ["vocabulary", "records", "pretraining", "finetuning", "evaluation"]


@pytest.fixture
def config(tiny_config: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tiny_config.parent)
    return settle_config("tiny.yaml")


def publish_vocabulary(config) -> Path:
    stage = vocabulary_stage(config)

    def build(work: Path) -> Contents:
        (work / "vocab.txt").write_text("\n".join([*SPECIAL_PIECES, "the", "cat", "in", "old", "house"]) + "\n")
        return Contents()

    return publish(stage.folder, "vocabulary", stage.key, build)


def test_command_prints_a_plan_and_starts_nothing(tiny_config: Path):
    before = sorted(tiny_config.parent.rglob("*"))
    script = (
        "import sys\nfrom keras_bert_flow.cli import app\n"
        "app(['run', 'tiny.yaml', '--plan', '--backend', 'torch', '--set', 'pretraining.total_steps=7'], "
        "standalone_mode=False)\n"
        "print([name for name in ('keras', 'torch', 'apache_beam', 'prefect', 'grain') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tiny_config.parent,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=True,
    )
    *lines, loaded = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[2:7]] == STAGES
    assert re.fullmatch(r"vocabulary +[0-9a-f]{16} +to run", lines[2])
    assert re.fullmatch(r"records +not yet known +to run, key needs vocabulary", lines[3])
    assert "backend torch" in lines[0] and any(line.startswith("Pre-training: 7 steps of 4") for line in lines)
    assert loaded == "[]"
    assert sorted(tiny_config.parent.rglob("*")) == before


def test_plan_has_the_keys_of_the_stages(config):
    folder = publish_vocabulary(config)
    vocabulary, records, *others = plan_stages(config)
    assert vocabulary.folder == folder and str(vocabulary).endswith("cached")
    assert records.stage.key == records_stage(config, folder).key
    assert records.stage.folder == records_stage(config, folder).folder
    assert [stage.stage for stage in others] == [None] * 3


def test_tokens_are_counted_with_a_vocabulary_and_assumed_without(config, tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("the cat in the old house\n\n" * 1000)  # 26 bytes with the blank line, 6 tokens
    pieces = publish_vocabulary(config) / "vocab.txt"
    tokens, line = estimate_tokens(config, [str(text)], pieces)
    assert tokens == 6000 and "4.33 bytes per token in the first 0.03 MB" in line and SAMPLE_BYTES > 26_000
    tokens, line = estimate_tokens(config, [str(text)], None)
    assert tokens == 26_000 / 4.5 and "assumed 4.5 bytes per token, no vocabulary yet" in line


def test_estimates_follow_from_the_settings(config):
    config = config.model_copy(update={"pretraining": config.pretraining.model_copy(update={"peak_flops": 1e6})})
    records, training, seconds = estimate_pretraining(config, 29_000.0)
    assert records.startswith("Records: about 1,600 of 32 tokens")  # 29,000 tokens x 0.8 x 2 copies / 29
    assert "4 steps of 4 sequences, about 0.0 passes" in training
    assert "at pretraining.peak_flops" in seconds
    assert estimate_finetuning(config, 28)[0].startswith("Fine-tuning: 28 examples, 7 steps of 4 in each of 2 runs")


def test_plan_counts_each_phase(config):
    second = {"sequence_length": 64, "total_steps": 3, "warmup_steps": 1, "batch_size": 2}
    config = type(config).model_validate(config.model_dump() | {"second_phase": second})
    text = describe_plan(config)
    assert text.count("\nrecords ") == text.count("\npretraining ") == 2
    assert "Pre-training: 3 steps of 2 sequences" in text


def test_plan_of_the_built_in_corpus_knows_its_first_key(config):
    corpus, *others = plan_stages(type(config)(runs=config.runs))
    assert (corpus.name, corpus.stage is not None) == ("corpus", True)
    assert [stage.name for stage in others] == STAGES and all(stage.stage is None for stage in others)
