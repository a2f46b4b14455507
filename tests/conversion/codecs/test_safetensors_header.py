"""What the header of a safetensors file says is checked before a tensor is read, against the library as the oracle."""

import json
import random
import time

import numpy as np
import pytest
from safetensors.numpy import load, load_file, save, save_file

from keras_bert_flow.conversion.codecs.safetensors_file import MAX_HEADER_BYTES, open_floats, open_tensors

pytestmark = pytest.mark.any_backend

TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
EMPTY = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
DAMAGED = {
    "deep": b"[" * 100_000,
    "no JSON": b"no JSON",
    "no object": b"[]",
    "metadata is a list": {"__metadata__": ["pt"], "a": TENSOR},
    "metadata": {"__metadata__": {"format": 3}, "a": TENSOR},
    "no entry": b'{"a": 3}',
    "no dtype": b'{"a": {"shape": [2], "data_offsets": [0, 8]}}',
    "twice": b'{"a": %s, "a": %s}' % ((json.dumps(EMPTY).encode(),) * 2),
    "beyond the end": {"a": TENSOR | {"shape": [4], "data_offsets": [0, 16]}},
    "short of the end": {"a": TENSOR | {"shape": [1], "data_offsets": [0, 4]}},
    "end before start": {"a": TENSOR | {"data_offsets": [8, 0]}},
    "gap": {"a": TENSOR | {"shape": [1], "data_offsets": [4, 8]}},
    "gap between": {"a": EMPTY, "b": TENSOR | {"shape": [1], "data_offsets": [4, 8]}},
    "overlap": {"a": TENSOR, "b": TENSOR},
    "partial overlap": {"a": TENSOR, "b": TENSOR | {"shape": [1], "data_offsets": [4, 8]}},
    "negative offset": {"a": TENSOR | {"data_offsets": [-8, 0]}},
    "negative size": {"a": TENSOR | {"shape": [-2]}},
    "two negative sizes": {"a": TENSOR | {"shape": [-1, -2]}},
    "size is true": {"a": TENSOR | {"shape": [True, 2]}},
    "fractional size": {"a": TENSOR | {"shape": [2.0]}},
    "overflow": {"a": TENSOR | {"shape": [2**40, 2**40]}},
    "overflow to the right size": {"a": TENSOR | {"shape": [2**62 + 2]}},  # times 4 bytes it is 8 modulo 2**64
    "many sizes": {"a": TENSOR | {"shape": [2**62] * 300_000}},  # whose product takes minutes
    "another size": {"a": TENSOR | {"shape": [3]}},
    "three offsets": {"a": TENSOR | {"data_offsets": [0, 4, 8]}},
    "unknown dtype": {"a": TENSOR | {"dtype": "F33"}},
    "dtype of another size": {"a": TENSOR | {"dtype": "F64"}},
    "dtype is a list": {"a": TENSOR | {"dtype": ["F32"]}},
}


def write(path, header, data: bytes = bytes(8)) -> None:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize("header", DAMAGED.values(), ids=DAMAGED)
def test_damaged_headers_are_refused(tmp_path, header):
    write(tmp_path / "a.safetensors", header)
    started = time.process_time()
    with pytest.raises(ValueError, match="not a whole safetensors file") as refusal:
        open_tensors(tmp_path / "a.safetensors")
    assert time.process_time() - started < 5 and "unpack" not in str(refusal.value)
    assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 600


@pytest.mark.parametrize("length", [2**64 - 1, 2**63, 2**40, 10 << 30, (10 << 30) - 8, 0, 2, 100])
def test_sparse_files_are_refused_by_their_header(tmp_path, length):
    path = tmp_path / "a.safetensors"
    with open(path, "wb") as file:
        file.write(length.to_bytes(8, "little") + b"{}")
        file.truncate(10 << 30)
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        open_floats(path)


def test_long_headers_are_refused(tmp_path):
    write(tmp_path / "a.safetensors", b"{}".ljust(MAX_HEADER_BYTES), b"")
    assert not open_tensors(tmp_path / "a.safetensors")
    write(tmp_path / "a.safetensors", b"{}".ljust(MAX_HEADER_BYTES + 1), b"")
    with pytest.raises(ValueError, match="over 16,777,216"):
        open_tensors(tmp_path / "a.safetensors")


@pytest.mark.parametrize("content", [b"", b"\0", bytes(8), b"\2" + bytes(7)])
def test_files_shorter_than_a_header_are_refused(tmp_path, content):
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        open_tensors(tmp_path / "a.safetensors")


def make_arrays() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    dtypes = ("f8", "f4", "f2", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1", "?")
    arrays = {dtype: (rng.normal(size=(3, 5)) * 9).astype(dtype) for dtype in dtypes}
    return arrays | {"none": np.zeros((0, 4), "float32"), "one": np.array(3.5, "float32")}


def test_tensors_are_those_of_the_library(tmp_path):
    save_file(make_arrays(), tmp_path / "a.safetensors", metadata={"format": "pt"})
    ours, theirs = open_tensors(tmp_path / "a.safetensors"), load_file(tmp_path / "a.safetensors")
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert ours.shapes[name] == ours[name].shape == array.shape and ours[name].dtype == array.dtype
        assert np.array_equal(ours[name], array)
    assert open_floats(tmp_path / "a.safetensors").keys() == {"f8", "f4", "f2", "none", "one"}


def test_bfloat16_is_read_as_float32(tmp_path):
    values = np.array([1.5, -2.0, 0.0], "float32")
    write(tmp_path / "a.safetensors", {"a": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}, upper(values))
    tensors = open_floats(tmp_path / "a.safetensors")
    tensors.check_finite()
    assert np.array_equal(tensors["a"], values)
    for value in (np.nan, np.inf, -np.inf):
        values[1] = value
        data = upper(values)
        write(tmp_path / "a.safetensors", {"a": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]}}, data)
        with pytest.raises(ValueError, match="a with NaN or infinity"):
            open_floats(tmp_path / "a.safetensors").check_finite()


def upper(values: np.ndarray) -> bytes:
    return (values.view("<u4") >> 16).astype("<u2").tobytes()


@pytest.mark.parametrize("place", [0, 524_287, 524_288, 1_500_000, 1_999_999])
def test_nan_is_found_in_every_chunk(tmp_path, place):
    values = np.zeros(2_000_000)  # 16 MB, in chunks of 4
    values[place] = np.nan
    save_file({"a": np.ones(3, "float32"), "b": values}, tmp_path / "a.safetensors")
    with pytest.raises(ValueError, match="b with NaN or infinity"):
        open_tensors(tmp_path / "a.safetensors").check_finite()


@pytest.mark.parametrize("count", [500, pytest.param(50_000, marks=pytest.mark.slow)])
def test_mutated_files_are_read_as_by_the_library_or_refused(tmp_path, count):
    chance, whole = random.Random(0), save(make_arrays())
    header, path, refused = 8 + int.from_bytes(whole[:8], "little"), tmp_path / "a.safetensors", 0
    for _ in range(count):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 1, 2, 5))):
            damaged[chance.randrange(header)] = chance.choice((chance.randrange(256), *b'0123456789-,:[]{}".eFI'))
        damaged = bytes(damaged[: chance.choice((None, None, None, chance.randrange(len(damaged))))])
        path.write_bytes(damaged)
        try:
            ours = dict(open_tensors(path))
        except ValueError:
            refused += 1
            continue
        try:
            theirs = load(damaged)
        except KeyError:  # a dtype that numpy has not
            continue
        assert ours.keys() == theirs.keys()
        assert all(np.array_equal(ours[name], theirs[name], equal_nan=True) for name in theirs)
    assert count / 2 < refused < count
