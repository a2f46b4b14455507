import contextlib
import json
import random
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_bert_flow.conversion.model_directory import load_backbone, save_model_directory
from keras_bert_flow.conversion.tensor_file import read_tensors
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.models.backbone import BertBackbone
from tests.oracles.small_bert import SMALL


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
    (folder / "tokenizer_config.json").write_text(content)
    with pytest.raises(ValueError, match="tokenizer_config"):
        read_tokenizer(folder)


@pytest.mark.parametrize("length", [2**63, 2**40, 0, 100])
def test_sparse_tensor_files_are_refused_by_their_header(tmp_path, length):
    path = tmp_path / "model.safetensors"
    with open(path, "wb") as file:
        file.write(length.to_bytes(8, "little") + b"{}")
        file.truncate(10 << 30)
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        read_tensors(path)


def write_header(path, header: bytes, num_bytes: int = 8) -> None:
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(num_bytes))


TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b"no JSON",
        json.dumps({"a": TENSOR | {"data_offsets": [0, 16]}}).encode(),
        json.dumps({"a": TENSOR | {"data_offsets": [8, 0]}}).encode(),
        json.dumps({"a": TENSOR, "b": TENSOR}).encode(),
        json.dumps({"a": TENSOR | {"dtype": "F33"}}).encode(),
        json.dumps({"a": TENSOR | {"shape": [2**40, 2**40]}}).encode(),
        json.dumps({"a": TENSOR | {"shape": [-2]}}).encode(),
    ],
)
def test_damaged_headers_are_refused(tmp_path, header):
    write_header(tmp_path / "model.safetensors", header)
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        read_tensors(tmp_path / "model.safetensors")


def test_tensors_are_those_of_the_library(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"a": rng.normal(size=(3, 5)).astype("float32"), "b": np.float16([1.5]), "c": np.zeros((0, 4), "float32")}
    save_file(arrays, tmp_path / "model.safetensors")
    ours, theirs = read_tensors(tmp_path / "model.safetensors"), load_file(tmp_path / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert ours[name].shape == array.shape and np.array_equal(ours[name], array)


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.slow)])
def test_mutated_tensor_files_are_read_or_refused(published, tmp_path, count):
    chance, whole = random.Random(0), (published / "model.safetensors").read_bytes()
    header, path = 8 + int.from_bytes(whole[:8], "little"), tmp_path / "model.safetensors"
    for _ in range(count):
        damaged = bytearray(whole)
        damaged[chance.randrange(header)] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged[: chance.choice((None, chance.randrange(len(damaged))))])
        with contextlib.suppress(ValueError):
            read_tensors(path)
