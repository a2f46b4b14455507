"""Models whose tensors are in several safetensors files."""

import json

import numpy as np
import pytest

from keras_bert_flow.conversion.codecs.safetensors_file import open_model_tensors, write_tensors

pytestmark = pytest.mark.any_backend

NAMES = [f"model-{number:05d}-of-00003.safetensors" for number in (1, 2, 3)]
TENSORS = {
    name: {f"{letter}{name[10]}": np.full(2, float(number)) for letter in "ab"} for number, name in enumerate(NAMES)
}


@pytest.fixture
def folder(tmp_path):
    for name, tensors in TENSORS.items():
        write_tensors(tmp_path / name, tensors)
    write_index(tmp_path, {tensor: name for name, tensors in TENSORS.items() for tensor in tensors})
    return tmp_path


def write_index(folder, weight_map):
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_tensors_of_all_files_are_one_model(folder):
    found = open_model_tensors(folder)
    assert len(found) == 6
    for tensors in TENSORS.values():
        for name, value in tensors.items():
            np.testing.assert_array_equal(found.rename(str.upper)[name.upper()], value)


def test_one_file_counts_before_an_index(folder):
    write_tensors(folder / "model.safetensors", {"alone": np.ones(1)})
    assert {*open_model_tensors(folder)} == {"alone"}


def test_file_that_is_missing_is_named(folder):
    (folder / NAMES[1]).unlink()
    with pytest.raises(FileNotFoundError, match=f"A model must be whole.*without {NAMES[1]}"):
        open_model_tensors(folder)


def test_tensor_in_two_files_is_refused(folder):
    write_tensors(folder / NAMES[1], TENSORS[NAMES[0]] | TENSORS[NAMES[1]])
    with pytest.raises(ValueError, match="each tensor must appear once. Received: a"):
        open_model_tensors(folder)


def test_broken_number_in_any_file_is_told(folder):
    write_tensors(folder / NAMES[2], {name: np.full(3, np.nan) for name in TENSORS[NAMES[2]]})
    with pytest.raises(ValueError, match=rf"{NAMES[2]}: weights must be finite"):
        open_model_tensors(folder).check_finite()


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/passwd", "a/b.safetensors", "model.bin", 3, None])
def test_files_of_an_index_lie_beside_it(folder, file):
    write_index(folder, {"a": file})
    with pytest.raises(ValueError, match="weight_map must name files beside it"):
        open_model_tensors(folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"weight_map": 3}', '{"weight_map": []}', "null"])
def test_index_that_is_none_is_refused(folder, content):
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ValueError, match=r"index.json: .*Copy it again") as refusal:
        open_model_tensors(folder)
    assert "\n" not in str(refusal.value)


def test_pickle_is_never_read_and_its_way_out_is_told(tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04")
    with pytest.raises(FileNotFoundError, match="No pickle is read.*transformers turns it into safetensors"):
        open_model_tensors(tmp_path)
