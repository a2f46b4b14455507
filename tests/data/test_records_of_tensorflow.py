"""Record files beside those of TensorFlow, where it is the backend and thus imported."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_bert_flow.records.example import decode_example
from keras_bert_flow.records.tfrecord import INDEX_SUFFIX, TFRecordFile, write_tfrecords
from tests.oracles import tensorflow_records
from tests.oracles.examples import encode_example

pytestmark = pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="imports TensorFlow")

EXAMPLES = {
    "a_record": {
        "input_ids": np.array([101, 7, 30521, 0], np.int64),
        "masked_lm_weights": np.array([1, 0.1, 0], np.float32),
        "next_sentence_labels": np.array([1]),
    },
    "integers": {"x": np.array([0, -1, 127, 128, 2**63 - 1, -(2**63)])},
    "small_integers": {"int32": np.array([3, -4], np.int32), "uint8": np.array([255], np.uint8)},
    "booleans": {"x": np.array([True, False])},
    "floats": {
        "x": np.array([0.0, -0.0, 1e-45, 3.4e38, np.inf, -np.inf], np.float32),
        "double": np.array([0.1, 1 / 3]),
    },
    "bytes": {"x": np.array([b"", b"a\0b", "é".encode(), bytes(range(256))], object)},
    "empty": {"i": np.array([], np.int64), "f": np.array([], np.float32), "b": np.array([], object)},
    "order": {name: np.array([number]) for number, name in enumerate(["b", "a", "é", "", "aa", "B", "zz"])},
    "long": {"x": np.arange(5000) * 7919 % 30522},
}
RECORDS = (b"", b"a", b"\0" * 100, bytes(range(256)) * 300, b"last")


@pytest.fixture(scope="module")
def tensorflow_side(tmp_path_factory) -> Path:
    """Return the folder in which TensorFlow has read our files and written its own."""
    folder = tmp_path_factory.mktemp("tensorflow")
    (folder / "ours").mkdir()
    for case, features in EXAMPLES.items():
        (folder / "ours" / case).write_bytes(encode_example(features))
    cases = {case: {name: describe(values) for name, values in features.items()} for case, features in EXAMPLES.items()}
    (folder / "cases.json").write_text(json.dumps(cases))
    write_tfrecords(folder / "ours.tfrecord", RECORDS)
    tensorflow_records.main(folder)
    return folder


def describe(values: np.ndarray) -> list:
    """Write an array as the oracle does: [kind, values]."""
    if values.dtype.kind == "O":
        return ["bytes", [value.hex() for value in values.tolist()]]
    if values.dtype.kind == "f":
        return ["float", [str(value) for value in values.astype(np.float32).tolist()]]
    return ["int", values.astype(np.int64).tolist()]


@pytest.mark.parametrize("case", EXAMPLES)
def test_example_has_the_bytes_of_tensorflow(case, tensorflow_side):
    assert encode_example(EXAMPLES[case]) == (tensorflow_side / "theirs" / case).read_bytes()


@pytest.mark.parametrize("case", EXAMPLES)
def test_example_of_ours_is_read_by_tensorflow(case, tensorflow_side):
    seen = json.loads((tensorflow_side / "seen.json").read_text())["examples"][case]
    assert seen == {name: describe(values) for name, values in EXAMPLES[case].items()}


@pytest.mark.parametrize("case", EXAMPLES)
def test_example_of_tensorflow_is_read_by_us(case, tensorflow_side):
    features = decode_example((tensorflow_side / "theirs" / case).read_bytes())
    assert {name: describe(values) for name, values in features.items()} == {
        name: describe(values) for name, values in EXAMPLES[case].items()
    }


def test_tfrecord_of_ours_is_read_by_tensorflow(tensorflow_side):
    seen = json.loads((tensorflow_side / "seen.json").read_text())["records"]
    assert [bytes.fromhex(record) for record in seen] == list(RECORDS)


def test_tfrecord_of_tensorflow_is_read_without_an_index(tensorflow_side):
    path = tensorflow_side / "theirs.tfrecord"
    assert not path.with_name(path.name + INDEX_SUFFIX).exists()
    file = TFRecordFile(path)
    assert [file[position] for position in range(len(file))] == list(RECORDS)


def test_tfrecord_has_the_bytes_of_tensorflow(tensorflow_side):
    assert (tensorflow_side / "ours.tfrecord").read_bytes() == (tensorflow_side / "theirs.tfrecord").read_bytes()
