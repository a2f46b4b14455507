"""Checkpoints of TensorFlow are read and written as TensorFlow does; damaged ones are refused in one line."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_bert_flow.conversion.codecs import tensor_bundle
from keras_bert_flow.conversion.codecs.tensor_bundle import (
    name_slice,
    open_bundle,
    read_table,
    write_bundle,
    write_table,
)
from keras_bert_flow.records.example import BYTES, FIXED32, VARINT, write_field, write_varint
from tests.oracles import tensorflow_checkpoints
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.any_backend

UNREAD = 54  # bytes of an index: the padding of its footer, and an empty block with its place
TENSORS = {
    "a/kernel": np.arange(6, dtype="f4").reshape(2, 3),
    "a/bias": np.ones(3, "f4"),
    "global_step": np.array(7, "i8"),
    "none": np.zeros((0, 4), "f2"),
}


MANY = TENSORS | {f"bert/layer_{n}/kernel": np.full((n % 4, n % 7), n, "f4") for n in range(200)}
MANY |= {"double": np.array(0.5), "small": np.arange(-3, 3, dtype="i4")}


@pytest.fixture(scope="module")
def theirs(tmp_path_factory) -> Path:
    """A folder in which TensorFlow has read our checkpoint of `MANY` and written its own, in one process."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed")
    folder = tmp_path_factory.mktemp("theirs")
    write_bundle(folder / "ours", MANY)
    command = [sys.executable, tensorflow_checkpoints.__file__, str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_SECONDS)
    return folder


@pytest.fixture
def ours(tmp_path) -> Path:
    write_bundle(tmp_path / "ours", TENSORS)
    return tmp_path / "ours"


@pytest.mark.slow  # for `theirs`: TensorFlow is loaded
@pytest.mark.parametrize("name", ["plain", "sharded"])
def test_checkpoints_of_tensorflow_are_read(theirs, name):
    expected = np.load(theirs / "expected.npz")
    assert len(list(theirs.glob(f"{name}.data*"))) == (1 if name == "plain" else 4)
    found = open_bundle(theirs / name)
    assert found.keys() == {*expected.files}
    for key in expected.files:
        assert found[key].dtype == expected[key].dtype and found.shapes[key] == expected[key].shape
        np.testing.assert_array_equal(found[key], expected[key])


@pytest.mark.slow
def test_tensorflow_reads_ours(theirs):
    found = np.load(theirs / "read.npz")
    assert {*found.files} == {*MANY}
    for name, value in MANY.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)


def test_bundle_is_read_as_written(ours):
    found = open_bundle(ours)
    assert {**found.shapes} == {name: value.shape for name, value in TENSORS.items()}
    for name, value in TENSORS.items():
        assert found[name].dtype == value.dtype
        np.testing.assert_array_equal(found[name], value)


def test_damaged_data_is_told(ours):
    path = tensor_bundle.name_shard(ours, 0, 1)
    data = bytearray(path.read_bytes())
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        found, refused = open_bundle(ours), 0
        for name in TENSORS:
            try:
                np.testing.assert_array_equal(found[name], TENSORS[name])
            except ValueError as error:
                assert "the checksum of" in str(error)
                refused += 1
        assert refused == 1
    path.write_bytes(data[:-1])
    with pytest.raises(ValueError, match="does not fit its data"):
        open_bundle(ours)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="without ours.data-00000-of-00001"):
        open_bundle(ours)


def test_damaged_index_is_told(ours):
    path = ours.with_name("ours.index")
    data = path.read_bytes()
    expected, refused = open_bundle(ours).shapes, 0
    for place in range(len(data)):
        for damaged in (data[:place], data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :]):
            path.write_bytes(damaged)
            try:
                assert open_bundle(ours).shapes == expected  # what is damaged is read by nobody: padding
            except ValueError as error:
                assert str(error).startswith(f"{path}: not a whole index") and "\n" not in str(error)
                refused += 1
    assert refused >= 2 * len(data) - UNREAD


def write_entry(shape=(2,), dtype=1, shard=0, start=0, size=8, slices=()):
    sizes = b"".join(write_field(2, BYTES, write_field(1, VARINT, write_varint(number))) for number in shape)
    integers = ((1, dtype), (3, shard), (4, start), (5, size))
    entry = b"".join(write_field(number, VARINT, write_varint(value)) for number, value in integers)
    for extents in slices:
        parts = [b"".join(write_field(n, VARINT, write_varint(v)) for n, v in enumerate(e, 1)) for e in extents]
        entry += write_field(7, BYTES, b"".join(write_field(1, BYTES, part) for part in parts))
    return write_field(2, BYTES, sizes) + entry + write_field(6, FIXED32, b"\0" * 4)


def test_index_that_lies_is_told_before_anything_is_read(ours):
    """With checksums that are right."""
    path = ours.with_name("ours.index")
    header = read_table(path)[b""]
    huge = 1 << 62
    halves = [((0, 1),), ((1, 1),)]
    part = write_entry((1,), size=4)
    lies = {
        "is not where": [
            {b"x": write_entry(size=4)},
            {b"x": write_entry(start=-8)},
            {b"x": write_entry(start=1 << 40)},
            {b"x": write_entry(shard=1)},
            {b"x": write_entry(shard=-1)},
            {b"x": write_entry((-2,), size=-8)},
            {b"x": write_entry((huge, 2), size=8)},
            {b"x": write_entry((1,) * 300, size=4)},
        ],
        "do not make a whole": [
            {b"x": write_entry(slices=halves)},
            {b"x": write_entry(slices=halves[:1]), name_slice(b"x", halves[0]): part},
            {b"x": write_entry((huge,), slices=halves), **{name_slice(b"x", half): part for half in halves}},
            {b"x": write_entry((2, 2), slices=halves), **{name_slice(b"x", half): part for half in halves}},
        ],
        "without ours.data-00000-of-00009": [{b"": header.replace(b"\x08\x01", b"\x08\x09", 1)}],
        "it has 0 shards": [{b"": header.replace(b"\x08\x01", b"\x08\x00", 1)}],
        "big-endian": [{b"": header + b"\x10\x01"}],
        "it has no header": [{b"": None}],
        "not a whole index": [{b"x": b"\xff"}, {b"x": b"\x08"}, {b"x": write_entry() + b"\x12\x05ab"}],
    }
    for words, tables in lies.items():
        for table in tables:
            entries = {key: value for key, value in ({b"": header} | table).items() if value is not None}
            write_table(path, entries)
            with pytest.raises((ValueError, FileNotFoundError), match=words) as refusal:
                open_bundle(ours)
            assert "\n" not in str(refusal.value) and len(str(refusal.value)) < 600


def test_parts_are_put_together_in_their_order(ours):
    path, halves = ours.with_name("ours.index"), [((1, 1),), ((0, 1),)]
    table = read_table(path)
    bias = table[b"a/bias"]
    write_bundle(ours, {"x": np.array([1], "f4"), "y": np.array([2], "f4")})
    parts = read_table(path)
    entries = {b"": parts[b""], b"z": write_entry(slices=halves, size=0)}
    entries |= {name_slice(b"z", half): parts[key] for half, key in zip(halves, (b"y", b"x"), strict=True)}
    write_table(path, entries)
    assert open_bundle(ours)["z"].tolist() == [1, 2] and bias
