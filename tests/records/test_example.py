import numpy as np
import pytest

from keras_bert_flow.records.example import decode_example
from tests.oracles.examples import encode_example


def test_example_gives_integers_floats_and_bytes_their_types():
    features = {"i": np.array([], np.int32), "f": np.array([], np.float64), "b": np.array([], object)}
    decoded = decode_example(encode_example(features))
    assert {name: values.dtype for name, values in decoded.items()} == {
        "i": np.dtype("int64"),
        "f": np.dtype("float32"),
        "b": np.dtype(object),
    }


def test_example_does_not_depend_on_the_order_of_features():
    names = ["b", "a", "é", "", "aa", "B", "zz"]
    features = {name: np.array([number]) for number, name in enumerate(names)}
    assert encode_example(dict(reversed(features.items()))) == encode_example(features)


@pytest.mark.parametrize("record", [b"\x0a\xff", b"\xff\xff\xff", encode_example({"x": np.arange(9)})[:-1], b"text"])
def test_example_refuses_other_bytes(record):
    with pytest.raises(ValueError, match=rf"must be a tf\.train\.Example\. Received: {len(record)} other bytes\."):
        decode_example(record)


@pytest.mark.parametrize("values", [np.array([1j]), np.array(["2020-01-01"], "datetime64[D]")])
def test_example_refuses_other_types(values):
    with pytest.raises(TypeError, match="integers, floats or bytes. Received: x of"):
        encode_example({"x": values})
