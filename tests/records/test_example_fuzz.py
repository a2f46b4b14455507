"""Damaged and unusual records: the answer is protobuf's, be it values or a refusal.

Two kinds of record: those of a real one with bytes changed, and trees of fields drawn at random, whose lengths fit, so
that the innermost fields are reached as well.
"""

import faulthandler
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from google.protobuf.message import DecodeError

from keras_bert_flow.records.example import decode_example, write_varint
from tests.oracles.examples import decode_by_protobuf, encode_example

VARINT, FIXED64, BYTES, GROUP, END_GROUP, FIXED32 = range(6)
REAL = encode_example(
    {
        "input_ids": np.array([101, 7, 30521, 0, -1, 2**63 - 1, -5]),
        "masked_lm_weights": np.array([1, 0.1, np.nan], np.float32),
        "text": np.array([b"x", b"", "é".encode()], object),
        "none": np.array([], np.int64),
    }
)


def write_tree(rng, depth: int) -> bytes:
    """Return a message: mostly the nesting of an Example, now and then another field, type or length."""
    if depth > 4:
        return rng.bytes(int(rng.integers(9)))
    fields = []
    for _ in range(int(rng.integers(4))):
        if rng.random() < 0.85:
            wire, number = BYTES, 1 if depth < 2 or depth == 4 else int(rng.integers(1, 4 if depth == 3 else 3))
        else:
            wire, number = int(rng.integers(8)), int(rng.choice([0, 1, 2, 3, 4, 15, 16, 2**29 - 1, 2**29]))
        fields.append(write_varint(number << 3 | wire) + write_value(rng, number, wire, depth))
    return b"".join(fields)


def write_value(rng, number: int, wire: int, depth: int) -> bytes:
    if wire == VARINT:
        return write_varint(int(rng.integers(-(2**63), 2**63))) if rng.random() < 0.8 else rng.bytes(11)
    if wire in (FIXED32, FIXED64):
        return rng.bytes(4 if wire == FIXED32 else 8)
    if wire == BYTES:
        value = write_leaf(rng, number) if depth == 4 else write_tree(rng, depth + 1)
        if depth == 2 and number == 1:
            value = bytes(rng.choice([b"a", b"b", "é".encode(), b"\xff", b""]))
        length = write_varint(len(value) + (int(rng.integers(-1, 2)) if rng.random() < 0.02 else 0))
        return (length[:-1] + bytes([length[-1] | 0x80, 0]) if rng.random() < 0.05 else length) + value
    if wire == GROUP:
        return write_tree(rng, depth + 1) + write_varint((number if rng.random() < 0.9 else 7) << 3 | END_GROUP)
    return b""


def write_leaf(rng, number: int) -> bytes:
    if rng.random() < 0.5:
        return rng.bytes(4 * int(rng.integers(4)))
    return b"".join(write_varint(int(value)) for value in rng.integers(-(2**63), 2**63, int(rng.integers(4))))


def damage(rng, record: bytes) -> bytes:
    """Change, insert or remove bytes at one to three places."""
    damaged = bytearray(record)
    for _ in range(int(rng.integers(1, 4))):
        place = int(rng.integers(len(damaged) + 1))
        kind = rng.integers(4)
        if kind == 0:
            damaged[place:place] = rng.bytes(int(rng.integers(1, 4)))
        elif kind == 1:
            del damaged[place : place + int(rng.integers(1, 4))]
        elif place < len(damaged):
            damaged[place] = int(rng.integers(256)) if kind == 2 else damaged[place] ^ 1 << int(rng.integers(8))
    return bytes(damaged)


def answer(decode, record: bytes, refusal: type[Exception]) -> dict | None:
    try:
        features = decode(record)
    except refusal:
        return None
    return {name: (values.dtype, describe(values)) for name, values in features.items()}


def describe(values: np.ndarray) -> bytes | list:
    if values.dtype == object:
        return values.tolist()
    # One NaN is another: protobuf's values go through a Python float, which quiets it.
    return (
        np.where(np.isnan(values), np.nan, values).astype(values.dtype).tobytes()
        if values.dtype == np.float32
        else values.tobytes()
    )


def check(seed: int, count: int) -> int:
    """Compare with protobuf; return how many records had values."""
    rng = np.random.default_rng(seed)
    readable = 0
    for _ in range(count):
        kind = rng.integers(3)
        record = damage(rng, REAL) if kind == 0 else write_tree(rng, 0)
        record = damage(rng, record) if kind == 2 else record
        ours = answer(decode_example, record, ValueError)
        assert ours == answer(decode_by_protobuf, record, DecodeError), record.hex()
        readable += ours is not None
    return readable


@pytest.mark.slow
def test_damaged_records_have_the_answer_of_protobuf():
    readable = check(seed=1, count=20_000)
    assert 2_000 < readable < 18_000  # both answers were seen


@pytest.mark.slow
def test_a_million_damaged_records_have_the_answer_of_protobuf():
    assert check(seed=2, count=1_000_000) > 100_000


@pytest.mark.parametrize("levels", [95, 96, 97, 98, 99, 100, 101, 102, 1000])
@pytest.mark.parametrize("nesting", [0, 1, 4])
def test_groups_nest_as_deep_as_in_protobuf(levels, nesting):
    group = write_varint(9 << 3 | GROUP) * levels + write_varint(9 << 3 | END_GROUP) * levels
    for _ in range(nesting):
        group = write_varint(1 << 3 | BYTES) + write_varint(len(group)) + group
    assert (answer(decode_example, group, ValueError) is None) == (
        answer(decode_by_protobuf, group, DecodeError) is None
    )


def test_records_are_read_in_many_threads_at_once():
    """protobuf's descriptors were not safe to read in threads: a segmentation fault after some thousand steps."""
    faulthandler.enable()
    expected = answer(decode_example, REAL, ValueError)
    start = threading.Barrier(8)

    def read() -> bool:
        start.wait(timeout=60)
        return all(answer(decode_example, REAL, ValueError) == expected for _ in range(500))

    with ThreadPoolExecutor(8) as threads:
        assert all(future.result(timeout=600) for future in [threads.submit(read) for _ in range(8)])
