"""Every command that reads a hostile file ends in one line and status 2, before its work and with bounded memory."""

import json
import resource

import pytest

from tests.checks.preflight.refused import assert_refused
from tests.files.test_yaml_documents import HOSTILE
from tests.oracles.tiny_model import write_tiny_model

COMMANDS = {
    "vocab": ["vocab", "--input", "none.txt", "--output", "new", "--config"],
    "records": ["records", "--input", "none.txt", "--vocab", "none", "--output", "new", "--config"],
    "doctor": ["doctor", "none.txt", "--config"],
    "pretrain": ["pretrain", "--records", "none", "--output", "new", "--config"],
    "finetune": ["finetune", "--model", "none", "--output", "new", "--task"],
    "evaluate": ["evaluate", "--predictions", "none", "--task"],
    "report": ["report", "--finetuned", "x", "--pretrained", "x", "--records", "x", "--output", "new", "--config"],
    "run": ["run"],
}
SETTINGS = {"number": "seed: " + "9" * 6000, "date": "seed: 2020-01-01", "nan": "records: {masked_fraction: .nan}"}
DOCUMENTS = HOSTILE | SETTINGS
CONFIGS = {
    "layers": {"num_hidden_layers": 10**9},
    "positions": {"max_position_embeddings": 10**10},
    "vocabulary": {"vocab_size": 10**9},
    "nan": {"layer_norm_eps": float("nan")},
    "architectures": {"architectures": [["BertModel"]]},
    "labels": {"num_labels": 10**12, "architectures": ["BertForTokenClassification"]},
    "problem": {"problem_type": ["regression"]},
    "heads": {"num_attention_heads": [2]},
}


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield tmp_path
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 600 << 10  # KiB


@pytest.mark.first_form
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_refuse_hostile_configurations(place, capsys, command):
    for text in DOCUMENTS.values():
        (place / "a.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
        assert_refused([*COMMANDS[command], "a.yaml"], "plain YAML|a.yaml|key: value", place, capsys)


@pytest.mark.parametrize("fields", CONFIGS.values(), ids=CONFIGS)
def test_predict_refuses_a_hostile_config(place, capsys, fields):
    config = json.loads((write_tiny_model(place / "model") / "config.json").read_text())
    (place / "model" / "config.json").write_text(json.dumps(config | fields))
    assert_refused(["predict", "--model", "model", "a"], "config.json|model.safetensors", place, capsys)


FILES = {
    "config.json": (b"[" * 1_000_000, b"[]", b'{"model_type": "bert", "model_type": "bert"}', b"\xff", b""),
    "tokenizer_config.json": (b"[1]", b'{"do_lower_case": "no"}', b'{"a":' * 1_000_000),
    "task.json": (b"[]", b"{}", b"[" * 1_000_000, b'{"kind": ["x"], "sequence_length": 9}'),
    "vocab.txt": (
        b"",
        b"\0\xff" * 1000,
        b"a\na\n",
        b"a\nb\nc\nd\ne\nf\ng\nh\n",
        b"a\n" * 10_000_000,
        b"a" * (100 << 20),
    ),
    "model.safetensors": (b"", b"\xff" * 100, (2**60).to_bytes(8, "little"), b"PK\x03\x04" * 100),
}


@pytest.mark.parametrize("name", FILES)
def test_predict_refuses_hostile_files(place, capsys, name):
    write_tiny_model(place / "model")
    for content in FILES[name]:
        (place / "model" / name).write_bytes(content)
        assert_refused(["predict", "--model", "model", "a"], name, place, capsys)
