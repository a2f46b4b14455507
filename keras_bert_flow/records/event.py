"""Write scalars to TensorBoard event files, without TensorFlow or TensorBoard.

Field numbers and types are those of tensorflow/core/util/event.proto and framework/summary.proto, limited to what a
scalar needs. The file is a TFRecord file.
"""

import struct
from collections.abc import Mapping

import numpy as np

from keras_bert_flow.records.wire_format import BYTES, FIXED32, FIXED64, VARINT, write_field, write_varint

_VERSION = b"brain.Event:2"  # in the first record of a file
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = 1, 2, 3, 5  # of Event
_VALUE = 1  # of Summary
_TAG, _SIMPLE_VALUE = 1, 2  # of Value


def encode_header(wall_time: float) -> bytes:
    """Return the first record of a file; `wall_time` is in seconds since 1970."""
    return _encode_wall_time(wall_time) + write_field(_FILE_VERSION, BYTES, _VERSION)


def encode_scalars(step: int, wall_time: float, scalars: Mapping[str, float]) -> bytes:
    """Return the record of a step; values are stored as float32."""
    values = b"".join(write_field(_VALUE, BYTES, _encode_value(tag.encode(), value)) for tag, value in scalars.items())
    counted = write_field(_STEP, VARINT, write_varint(step)) if step else b""  # protobuf leaves out zeros
    return _encode_wall_time(wall_time) + counted + (write_field(_SUMMARY, BYTES, values) if values else b"")


def _encode_wall_time(seconds: float) -> bytes:
    return write_field(_WALL_TIME, FIXED64, struct.pack("<d", seconds)) if seconds else b""


def _encode_value(tag: bytes, value: float) -> bytes:
    with np.errstate(over="ignore"):  # infinite in float32, as in protobuf
        written = np.float64(value).astype("<f4").tobytes()
    return write_field(_TAG, BYTES, tag) + write_field(_SIMPLE_VALUE, FIXED32, written)
