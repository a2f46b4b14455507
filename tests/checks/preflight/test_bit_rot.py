"""One flipped bit in any file of a published folder that a command reads is refused before work."""

import json
from pathlib import Path

import pytest
import yaml

from keras_bert_flow.results.manifest import write_manifest
from tests.checks.preflight.refused import assert_refused
from tests.oracles.tiny_model import PIECES, TINY_SHAPE, write_tiny_model
from tests.oracles.tiny_records import write_tiny_records

TABLE = "text\tlabel\ngood\tyes\nbad\tno\n"
TASK = "--task run.yaml --set finetuning.sequence_length=16"
PREDICT = "predict --model model a"
FINETUNE = f"finetune --model model {TASK} --output new"
EVALUATE = f"evaluate --model model {TASK}"
REPORT = "report --finetuned finetuned --pretrained pretrained --records records --config run.yaml --output new"
PRETRAIN = "pretrain --records records --config tiny.yaml --output new"
CONTINUE = "pretrain --records intact --initial-model model --config tiny.yaml --output new"
DISTILL = "distill --records records --teacher model --config student.yaml --output new"
SEARCH = "search --model model --lines corpus/corpus.txt a"
MODEL_FILES = ("model.safetensors", "config.json", "vocab.txt", "tokenizer_config.json", "task.json", "README.md")
CASES = [
    *((command, f"pretrained/model/{name}") for name in MODEL_FILES for command in (PREDICT, FINETUNE)),
    *((command, "pretrained/model/model.safetensors") for command in (EVALUATE, CONTINUE, DISTILL, SEARCH, REPORT)),
    *(
        (command, "pretrained/manifest.json")
        for command in (PREDICT, FINETUNE, EVALUATE, CONTINUE, DISTILL, SEARCH, REPORT)
    ),
    *((PRETRAIN, f"records/{name}") for name in ("train-*.tfrecord", "held_out-*.tfrecord", "*.index", "vocab.txt")),
    *((command, "records/manifest.json") for command in (PRETRAIN, DISTILL, REPORT, "inspect records")),
    (DISTILL, "records/train-*.tfrecord"),
    (REPORT, "records/train-*.tfrecord"),
    ("inspect records", "records/train-*.tfrecord"),
    ("inspect records", "records/train-*.index"),
    ("inspect records", "records/vocab.txt"),
    *((REPORT, f"finetuned/pretrained/seed-1/{name}") for name in ("model/model.safetensors", "run.json", "log.jsonl")),
    (REPORT, "pretrained/metrics.json"),
    *(
        (command, "vocabulary/vocab.txt")
        for command in (
            "records --vocab vocabulary/vocab.txt --input corpus.txt --output new",
            "vocab --set vocabulary.file=vocabulary/vocab.txt --output new",
            "doctor vocabulary",
            "doctor vocabulary/vocab.txt",
            "doctor corpus.txt --vocab vocabulary/vocab.txt",
        )
    ),
    *(
        (command, "corpus/corpus.txt")
        for command in (
            "vocab --input corpus/corpus.txt --output new",
            "vocab --input corpus/*.txt --output new",
            "records --vocab vocabulary/vocab.txt --input corpus --output new",
            "doctor corpus/corpus.txt",
            "predict --model model --as sentence_embedding --input corpus/corpus.txt",
            SEARCH,
        )
    ),
    *((command, "corpus/train.tsv") for command in (FINETUNE, REPORT)),
    *((command, "corpus/dev.tsv") for command in (FINETUNE, EVALUATE, REPORT)),
    (f"evaluate --predictions predictions/a.jsonl {TASK}", "predictions/a.jsonl"),
    ("glue-zip predictions/CoLA.jsonl --output new.zip", "predictions/CoLA.jsonl"),
]


@pytest.fixture(scope="module")
def published(tmp_path_factory) -> Path:
    """Write what each stage publishes; the names of the folders are links in the working directory of a test."""
    root = tmp_path_factory.mktemp("published")
    write_tiny_records(root / "records")
    write_tiny_records(root / "intact")
    pieces = (root / "intact" / "vocab.txt").read_text().split()
    write_tiny_model(root / "pretrained" / "model", pieces=pieces)
    write_tiny_model(root / "finetuned" / "pretrained" / "seed-1" / "model")
    for folder in root.glob("**/model"):
        (folder / "README.md").write_text("# A model\n")
        (folder / "tokenizer_config.json").write_text('{"do_lower_case": true}\n')
    (root / "pretrained" / "metrics.json").write_text('{"seconds": 1}')
    run = root / "finetuned" / "pretrained" / "seed-1"
    (run / "run.json").write_text('{"start": "pretrained", "seed": 1, "seconds": 1}')
    (run / "log.jsonl").write_text('{"step": 1}\n')
    for name in ("corpus", "vocabulary", "predictions"):
        (root / name).mkdir()
    (root / "corpus" / "corpus.txt").write_text("A cat sat. It ate.\n\nA dog ran.\n")
    for name in ("train", "dev"):
        (root / "corpus" / f"{name}.tsv").write_text(TABLE)
    (root / "vocabulary" / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    for name in ("a", "CoLA"):
        (root / "predictions" / f"{name}.jsonl").write_text('{"label": "yes"}\n{"label": "no"}\n')
    stages = {"pretrained": "pretraining", "finetuned": "finetuning", "predictions": "evaluation"}
    for name in (*stages, "corpus", "vocabulary"):
        write_manifest(root / name, stages.get(name, name), "key", {}, {}, {})
    return root


@pytest.fixture
def place(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for folder in published.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    (tmp_path / "model").symlink_to(published / "pretrained" / "model")
    task = {"task": {"train": "corpus/train.tsv", "dev": "corpus/dev.tsv"}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(task))
    tiny = {"model": {"size": "tiny"}, "pretraining": {"total_steps": 2, "batch_size": 2, "warmup_steps": 0}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(tiny))
    student = {"family": "distilbert", "num_layers": 1} | TINY_SHAPE | {"max_positions": 512}
    distillation = {"distillation": {"student": student, "total_steps": 2, "batch_size": 2, "warmup_steps": 0}}
    (tmp_path / "student.yaml").write_text(yaml.safe_dump(distillation))
    (tmp_path / "corpus.txt").write_text("A cat sat. It ate.\n\nA dog ran.\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    return tmp_path


@pytest.mark.parametrize(("command", "name"), CASES)
def test_flipped_bit_is_refused(command, name, published, place, capsys):
    (path, *_) = sorted(published.glob(name))
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 1
    path.write_bytes(damaged)
    try:
        words = r"damaged\. Build" if path.name == "manifest.json" else r"changed or damaged: sha256 \w{12}, not \w{12}"
        assert_refused(command.split(), rf"{path.name}, {words}", place, capsys)
    finally:
        path.write_bytes(whole)


def test_every_case_passes_its_checks_with_whole_files(place):
    """So what the cases refuse is the bit, not the setting."""
    from keras_bert_flow.checks import run as run_checks
    from keras_bert_flow.checks import stages
    from keras_bert_flow.cli.question_commands import check_prediction
    from keras_bert_flow.config.loading import load_config

    config = load_config("run.yaml", ["finetuning.sequence_length=16"])
    tiny, new = load_config("tiny.yaml"), Path("new")
    stages.check_pretraining_stage(tiny, Path("records"), None, new)
    with pytest.raises(ValueError, match="must have the shape"):  # behind the check of digests
        stages.check_pretraining_stage(tiny, Path("intact"), Path("model"), new)
    with pytest.raises(ValueError, match="must have a masked-LM head"):  # behind the same
        run_checks.check_distillation_stage(load_config("student.yaml"), Path("records"), Path("model"), new)
    stages.check_finetuning_stage(config, Path("model"), new)
    stages.check_report_stage(config, Path("finetuned"), Path("pretrained"), Path("records"), (), new)
    stages.check_records_stage(config, Path("vocabulary/vocab.txt"), new)
    check_prediction(Path("model"), "sentence_embedding", {}, [Path("corpus/corpus.txt")], None)
    assert json.loads(Path("pretrained/manifest.json").read_text())["digest"]
