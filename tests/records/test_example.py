import json

import numpy as np
import pytest

from keras_bert_flow.records.example import decode_example
from tests.oracles.examples import encode_example
from tests.records.conftest import EXAMPLES, describe


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


def test_example_gives_integers_floats_and_bytes_their_types():
    features = {"i": np.array([], np.int32), "f": np.array([], np.float64), "b": np.array([], object)}
    decoded = decode_example(encode_example(features))
    assert {name: values.dtype for name, values in decoded.items()} == {
        "i": np.dtype("int64"),
        "f": np.dtype("float32"),
        "b": np.dtype(object),
    }


def test_example_does_not_depend_on_the_order_of_features():
    features = EXAMPLES["order"]
    assert encode_example(dict(reversed(features.items()))) == encode_example(features)


@pytest.mark.parametrize("record", [b"\x0a\xff", b"\xff\xff\xff", encode_example(EXAMPLES["a_record"])[:-1], b"text"])
def test_example_refuses_other_bytes(record):
    with pytest.raises(ValueError, match=rf"must be a tf\.train\.Example\. Received: {len(record)} other bytes\."):
        decode_example(record)


@pytest.mark.parametrize("values", [np.array([1j]), np.array(["2020-01-01"], "datetime64[D]")])
def test_example_refuses_other_types(values):
    with pytest.raises(TypeError, match="integers, floats or bytes. Received: x of"):
        encode_example({"x": values})
