"""`kbf run --plan` says what would run and how large it is, and runs nothing."""

import bz2
import gzip
import json
import lzma
import os
import re
import subprocess
import sys
from pathlib import Path
from pydoc_data.topics import topics

import pyarrow as pa
import pytest
from pyarrow import parquet

from beam_jobs.build_records import build_records
from beam_jobs.build_vocabulary import build_vocabulary
from flows.parameters import resolve_config
from flows.plan import describe_plan, plan_stages
from flows.stages import records_stage, vocabulary_stage
from keras_bert_flow.checks.estimates import (
    SAMPLE_BYTES,
    count_records,
    estimate_corpus,
    estimate_finetuning,
    estimate_pretraining,
    measure_bytes,
    read_sample,
)
from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.pretraining import DistillationConfig, ModelConfig
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig, VocabularyConfig
from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.results.publishing import Contents, publish
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from tests.flows.conftest import ROOT
from tests.patience import PATIENCE_SECONDS

STAGES = ["vocabulary", "records", "pretraining", "finetuning", "evaluation"]


@pytest.fixture
def config(tiny_config: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tiny_config.parent)
    return resolve_config("tiny.yaml")


def publish_vocabulary(config) -> Path:
    stage = vocabulary_stage(config)

    def build(work: Path) -> Contents:
        (work / "vocab.txt").write_text("\n".join([*SPECIAL_PIECES, "the", "cat", "in", "old", "house"]) + "\n")
        return Contents()

    return publish(stage.folder, "vocabulary", stage.key, build)


@pytest.mark.slow
def test_plan_is_lines_whatever_the_run_is_called(config):
    plain = describe_plan(config)
    first, *others = describe_plan(config.model_copy(update={"name": "two\nlines \x1b]0;pwned\x07"})).splitlines()
    assert first.startswith("Plan of two\\nlines \\x1b]0;pwned\\x07: backend")
    assert len(others) == plain.count("\n")


@pytest.mark.slow
def test_plan_has_the_student_and_no_pretraining_with_a_teacher_of_its_own(config):
    shape = {"family": "distilbert", "num_layers": 1, "hidden_dim": 16, "num_heads": 2, "intermediate_dim": 32}
    student = DistillationConfig(student=ModelConfig(**shape), batch_size=4, total_steps=5, warmup_steps=1)
    taught = config.model_copy(update={"distillation": student})
    assert [stage.name for stage in plan_stages(taught)] == [*STAGES[:3], "distillation", *STAGES[3:]]
    lines = estimate_pretraining(taught, None)
    assert [line.partition(":")[0] for line in lines] == ["Pre-training", "Distillation", "Time of pre-training"]
    assert lines[1].startswith("Distillation: 5 steps of 4 sequences")
    own = student.model_copy(update={"teacher": "teacher"})
    taught = config.model_copy(update={"distillation": own})
    assert [stage.name for stage in plan_stages(taught)] == [*STAGES[:2], "distillation", *STAGES[3:]]
    assert [line.partition(":")[0] for line in estimate_pretraining(taught, None)][0] == "Distillation"


def test_plan_has_the_augmentation_and_its_rows(config):
    augmented = make_config(PipelineConfig, config.model_dump() | {"augmentation": {"copies": 3}}, "x.yaml")
    assert [stage.name for stage in plan_stages(augmented)] == [*STAGES[:3], "augmentation", *STAGES[3:]]
    lines = estimate_finetuning(augmented, 10)
    assert lines[0] == "Augmentation: 10 training rows become at most 40."
    assert lines[1].startswith("Fine-tuning: 40 examples, 10 steps of 4")
    assert estimate_finetuning(config, 10)[0].startswith("Fine-tuning: 10 examples")


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
    assert "Precision: float32, in fine-tuning float32." in lines
    assert loaded == "[]"
    assert sorted(tiny_config.parent.rglob("*")) == before


def test_plan_has_the_keys_of_the_stages(config):
    folder = publish_vocabulary(config)
    vocabulary, records, *others = plan_stages(config)
    assert vocabulary.folder == folder and str(vocabulary).endswith("cached")
    assert records.stage.key == records_stage(config, folder).key
    assert records.stage.folder == records_stage(config, folder).folder
    assert [stage.stage for stage in others] == [None] * 3


def test_tokens_are_counted_with_the_vocabulary_or_one_learnt_from_the_sample(config, tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("the cat in the old house\n\n" * 1000)  # 26 bytes with the blank line, 6 tokens, each counted once
    config = config.model_copy(update={"corpus": config.corpus.model_copy(update={"input": (str(text),)})})
    estimate = estimate_corpus(config, [str(text)], publish_vocabulary(config) / "vocab.txt")
    assert estimate.tokens == 6 and "1 documents, 0.03 MB, encoded with " in estimate.basis
    assert "learnt from it" in estimate_corpus(config, [str(text)], None).basis


def test_lost_characters_are_in_the_plan(config, tmp_path: Path):
    text = tmp_path / "text.txt"
    text.write_text("".join(chr(0x0E01 + n % 30) for n in range(250)) + " ที่\n\nกำ\n" * 9)  # one long word
    estimate = estimate_corpus(config, [str(text)], None)
    found = [line for line in estimate_pretraining(config, estimate) if line.startswith("Lost: ")]
    assert "become [UNK]. They are in words of over 200" in found[0] and "vocabulary.cased: true" in found[1]


@pytest.mark.slow
def test_minimal_pairs_are_in_the_plan_where_they_are_named(config, tmp_path: Path):
    (tmp_path / "pairs.jsonl").write_text('{"sentence_good": "a", "sentence_bad": "b", "UID": "x"}\n' * 3)
    named = resolve_config("tiny.yaml", ["evaluation={minimal_pairs: pairs.jsonl, minimal_pairs_limit: 2}"])
    assert named.evaluation.minimal_pairs == str(tmp_path / "pairs.jsonl")
    assert describe_plan(named).endswith("\nMinimal pairs: 2 of 1 phenomena, scored by the pre-trained model.")
    assert "Minimal pairs" not in describe_plan(config)


def test_estimates_follow_from_the_settings(config):
    config = config.model_copy(update={"pretraining": config.pretraining.model_copy(update={"peak_flops": 1e6})})
    training, seconds = estimate_pretraining(config, None)
    assert "4 steps of 4 sequences, " in training and "at pretraining.peak_flops" in seconds
    assert estimate_finetuning(config, 28)[0].startswith(
        "Fine-tuning: 28 examples, 7 steps of 4 in each of 1 runs and at most 14 in each of 1 from random weights,"
    )
    layers = config.finetuning.model_copy(update={"teacher": "there", "layer_epochs": 3, "compare_random": False})
    assert estimate_finetuning(config.model_copy(update={"finetuning": layers}), 28)[0].startswith(
        "Fine-tuning: 28 examples, 21 of layers and 7 steps of 4 in each of 1 runs, "
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "ending"),
    [
        ("mlm_nsp", ".txt"),
        pytest.param("mlm", ".jsonl.gz", marks=pytest.mark.slow),
        pytest.param("mlm_sop", ".parquet", marks=pytest.mark.slow),
    ],
)
def test_estimated_records_are_those_of_a_run(objective, ending, config, tmp_path: Path):
    path = write_topics(tmp_path / f"text{ending}")
    settings = {"objective": objective, "sequence_length": 64, "duplication": 2, "held_out_fraction": 0.1, "shards": 1}
    config = config.model_copy(
        update={
            "corpus": CorpusConfig(input=(str(path),)),
            "vocabulary": VocabularyConfig(size=1500),
            "records": RecordsConfig(**settings, max_predictions=10),
        }
    )
    estimate = estimate_corpus(config, [str(path)], None)
    vocabulary = build_vocabulary(config.corpus, config.vocabulary, tmp_path / "vocabulary") / "vocab.txt"
    folder = build_records(config.corpus, config.records, vocabulary, False, tmp_path / "records")
    counters = read_manifest(folder).counters
    assert 1 / 1.1 < estimate.tokens / counters["tokens"] < 1.1  # the whole text is in the sample, but for its end
    assert 1 / 1.5 < count_records(config, estimate) / counters["instances_train"] < 1.5


def test_size_of_a_corpus_is_that_of_its_unpacked_text(tmp_path: Path):
    plain = write_topics(tmp_path / "text.txt")
    corpus, size = CorpusConfig(input=(str(plain),)), plain.stat().st_size
    assert measure_bytes(corpus, [str(plain)]) == size
    for suffix, pack in ((".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)):
        path = tmp_path / f"text.txt{suffix}"
        path.write_bytes(pack(plain.read_bytes()))
        assert measure_bytes(corpus, [str(path), str(plain)]) == pytest.approx(2 * size, rel=0.01)


@pytest.mark.slow
def test_sample_is_bounded_and_taken_from_all_of_the_files(tmp_path: Path):
    paths = []
    for number in range(40):
        paths.append(str(tmp_path / f"{number:02}.txt"))
        Path(paths[-1]).write_text("".join(f"{number} text {line}\n\n" for line in range(10_000)))
    sample = read_sample(CorpusConfig(input=(str(tmp_path),)), paths)
    assert 0.5 * SAMPLE_BYTES < sample.read_bytes < 2 * SAMPLE_BYTES
    assert len({document.sentences[0].split()[0] for document in sample.documents}) > 10
    assert sample.total_bytes == sum(Path(path).stat().st_size for path in paths)


def write_topics(path: Path) -> Path:
    """Write the topics of Python's help, English of documents of many lengths."""
    texts = [topics[name] for name in sorted(topics)[:50]]
    if path.suffix == ".parquet":
        parquet.write_table(pa.table({"text": texts}), path)
    elif path.suffix == ".gz":
        path.write_bytes(gzip.compress("".join(json.dumps({"text": text}) + "\n" for text in texts).encode()))
    else:
        path.write_text("\n\n".join(re.sub(r"\n\n+", "\n", text) for text in texts))
    return path


def test_plan_counts_each_phase(config):
    second = {"sequence_length": 64, "total_steps": 3, "warmup_steps": 1, "batch_size": 2}
    config = type(config).model_validate(config.model_dump() | {"second_phase": second})
    text = describe_plan(config)
    assert text.count("\nrecords ") == text.count("\npretraining ") == 2
    assert "Pre-training: 3 steps of 2 sequences" in text


@pytest.mark.slow
def test_plan_of_cut_records_counts_the_sequences(config):
    def plan(records_length, length):
        records = {"objective": "mlm", "sequence_length": records_length, "max_predictions": 5}
        changed = config.model_dump() | {"records": config.records.model_dump() | records}
        changed["model"]["max_positions"], changed["pretraining"]["sequence_length"] = 64, length
        text = describe_plan(type(config).model_validate(changed))
        passes, operations = re.search(r"about ([\d.,]+) passes over the records, (\S+) floating", text).groups()
        return float(passes.replace(",", "")), float(operations)

    (short_passes, short), (whole_passes, _), (passes, operations) = plan(32, None), plan(62, None), plan(62, 32)
    assert operations == short  # as for records of this length: 15 % of 32 are 5 masks
    assert passes == pytest.approx(short_passes, rel=0.2) and passes == pytest.approx(whole_passes / 2, abs=0.1)


def test_plan_of_the_built_in_corpus_knows_its_first_key(config):
    corpus, *others = plan_stages(type(config)(runs=config.runs))
    assert (corpus.name, corpus.stage is not None) == ("corpus", True)
    assert [stage.name for stage in others] == STAGES and all(stage.stage is None for stage in others)


@pytest.mark.slow
def test_plan_of_the_built_in_corpus_has_sizes_and_estimates(config):
    config = type(config)(runs=config.runs, backend="torch")
    lines = describe_plan(config).splitlines()
    assert re.fullmatch(r"corpus +[0-9a-f]{16}  to run", lines[2])
    assert re.fullmatch(r"vocabulary +[0-9a-f]{16}  to run", lines[3])
    assert re.match(r"Corpus: 1 file, \d\.\d MB on disk", lines[9])
    assert re.match(r"Records: about \d{2,3},\d{3} of 128 tokens", lines[11])
    assert any(line.startswith("Fine-tuning: 3,600 examples") for line in lines)
    assert not Path(config.runs).exists()
