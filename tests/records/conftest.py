"""One run of TensorFlow, in a process of its own, for all tests that compare with it."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_bert_flow.records.tfrecord import write_tfrecords
from tests.oracles import tensorflow_records
from tests.oracles.examples import encode_example
from tests.patience import PATIENCE_SECONDS

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


@pytest.fixture(scope="session")
def tensorflow_side(tmp_path_factory) -> Path:
    """Return the folder in which TensorFlow has read our files and written its own."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed")
    folder = tmp_path_factory.mktemp("tensorflow")
    (folder / "ours").mkdir()
    for case, features in EXAMPLES.items():
        (folder / "ours" / case).write_bytes(encode_example(features))
    cases = {case: {name: describe(values) for name, values in features.items()} for case, features in EXAMPLES.items()}
    (folder / "cases.json").write_text(json.dumps(cases))
    write_tfrecords(folder / "ours.tfrecord", RECORDS)
    subprocess.run(
        [sys.executable, tensorflow_records.__file__, folder], check=True, capture_output=True, timeout=PATIENCE_SECONDS
    )
    return folder


def describe(values: np.ndarray) -> list:
    """Write an array as the oracle does: [kind, values]."""
    if values.dtype.kind == "O":
        return ["bytes", [value.hex() for value in values.tolist()]]
    if values.dtype.kind == "f":
        return ["float", [str(value) for value in values.astype(np.float32).tolist()]]
    return ["int", values.astype(np.int64).tolist()]
