import json
import math
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_bert_flow.conversion.model_directory import load_backbone, save_model_directory
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.heads.classifiers import TextClassifier
from tests.oracles.small_bert import SMALL
from tests.patience import PATIENCE_SECONDS


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    save_model_directory(BertBackbone(**SMALL), folder)
    return folder


@pytest.fixture
def folder(published, tmp_path):
    return shutil.copytree(published, tmp_path / "model")


FIELDS = ("num_hidden_layers", "max_position_embeddings", "vocab_size", "hidden_size", "intermediate_size")
NUMBERS = (10**9, 10**10, 1e9, -1, 0, True, "4", None, float("nan"), [[]], {})


@pytest.mark.parametrize("field", (*FIELDS, "type_vocab_size"))
def test_sizes_of_config_are_checked_before_a_model_is_built(folder, field):
    config = json.loads((folder / "config.json").read_text())
    for number in NUMBERS:
        (folder / "config.json").write_text(json.dumps(config | {field: number}))
        with pytest.raises(ValueError) as refusal:
            load_backbone(folder)
        assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 600


def test_rates_must_be_finite(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"layer_norm_eps": float("nan")}))
    with pytest.raises(ValueError, match="layer_norm_eps"):
        load_backbone(folder)


@pytest.mark.parametrize("content", ["[1]", "3", '{"do_lower_case": "no"}', '{"do_lower_case": 1}', "[" * 100_000])
def test_tokenizer_config_must_be_an_object_with_a_boolean(folder, content):
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(ValueError, match="tokenizer_config"):
        read_tokenizer(folder)


def edit_tensors(folder, edit) -> None:
    path = folder / "model.safetensors"
    save_file(edit(load_file(path)), path)


def set_config(folder, **fields) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


@pytest.mark.parametrize("part", ["attention.self.key.bias", "intermediate.dense.weight", "output.LayerNorm.weight"])
def test_every_layer_is_checked_before_a_model_is_built(folder, monkeypatch, part):
    monkeypatch.setattr("keras_bert_flow.conversion.model_directory.make_backbone", None)
    name = f"encoder.layer.1.{part}"
    edit_tensors(folder, lambda tensors: tensors | {name: np.zeros((3, 3), "float32")})
    with pytest.raises(ValueError, match=rf"`{name}` must have the shape .*Received: \(3, 3\)"):
        load_backbone(folder)
    edit_tensors(folder, lambda tensors: {key: value for key, value in tensors.items() if key != name})
    with pytest.raises(ValueError, match=f"no tensor `{name}`"):
        load_backbone(folder)


def test_layers_that_no_tensor_fills_are_refused_at_once(folder):
    """The last layer is there; those between are looked for one by one."""
    last = {"encoder.layer.999999999.output.dense.weight": np.zeros((24, 40), "float32")}
    edit_tensors(folder, lambda tensors: tensors | last)
    set_config(folder, num_hidden_layers=10**9)
    with pytest.raises(ValueError, match=r"encoder\.layer\.2\."):
        load_backbone(folder)


def test_classes_without_weights_are_refused(folder):
    edit_tensors(folder, lambda tensors: tensors | {"classifier.weight": np.zeros((10**12, 0), "float32")})
    set_config(folder, architectures=["BertForSequenceClassification"])
    with pytest.raises(ValueError, match=r"Received: `classifier\.weight` without `classifier\.bias`"):
        TextClassifier.from_preset(folder)


@pytest.mark.parametrize(
    "name", ["encoder.layer.1.output.dense.bias", "pooler.dense.weight", "cls.seq_relationship.bias"]
)
def test_weights_must_be_finite(folder, name):
    whole = {"cls.seq_relationship.weight": np.zeros((2, 24), "float32")} if name.startswith("cls") else {}
    edit_tensors(folder, lambda tensors: tensors | whole | {name: np.full_like(tensors.get(name, np.ones(2)), np.nan)})
    with pytest.raises(ValueError, match=f"{name} with NaN"):
        load_backbone(folder)


def test_tensors_with_two_spellings_are_refused(folder):
    name = "embeddings.LayerNorm.weight"
    edit_tensors(folder, lambda tensors: tensors | {"bert.embeddings.LayerNorm.gamma": tensors[name]})
    with pytest.raises(ValueError, match=f"{name}, twice"):
        load_backbone(folder)


def test_models_larger_than_memory_are_refused_unread(folder):
    """The tensors of a sparse file fit its config.json."""
    rows = 2 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // (24 * 4)
    tensors = load_file(folder / "model.safetensors")
    del tensors["embeddings.word_embeddings.weight"]
    write_sparse(folder / "model.safetensors", {"embeddings.word_embeddings.weight": (rows, 24)}, tensors)
    set_config(folder, vocab_size=rows)
    with pytest.raises(ValueError, match="a model must fit in memory"):
        load_backbone(folder)


def write_sparse(path, zeros, tensors) -> None:
    """Write some tensors, and behind them others as a hole in the file."""
    shapes = {name: array.shape for name, array in tensors.items()} | zeros
    header, end = {}, 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end := end + 4 * math.prod(shape)]}
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(array.tobytes() for array in tensors.values()))
        file.truncate(8 + len(text) + end)


def test_sparse_files_are_refused_by_config_unread(folder):
    """A tensor of 10 GB that is another by config.json."""
    tensors = load_file(folder / "model.safetensors")
    del tensors["embeddings.position_embeddings.weight"]
    write_sparse(folder / "model.safetensors", {"embeddings.position_embeddings.weight": (10 << 28, 1)}, tensors)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match=r"position_embeddings.weight` must have the shape \(16, 24\)"):
        load_backbone(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10  # KiB


@pytest.mark.any_backend
def test_looking_for_nan_takes_little_memory(tmp_path):
    """A hole of 1 GB in a file is looked through as zeros."""
    write_sparse(tmp_path / "model.safetensors", {"other": (1 << 28,)}, {})
    code = (
        "import pathlib, resource, sys\n"
        "from keras_bert_flow.conversion.codecs.safetensors_file import open_floats\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"
        "open_floats(pathlib.Path(sys.argv[1])).check_finite()\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "model.safetensors"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 32 << 10  # KiB
