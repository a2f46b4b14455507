"""Decode `tf.train.Example` from its wire format; `batches` encodes it.

Field numbers are those of tensorflow/core/example/feature.proto and example.proto:
Example{1: Features}, Features{1: entries of a map}, entry{1: name, 2: Feature},
Feature{1: bytes, 2: floats, 3: int64s};
each of these three is a list with its values in field 1, packed or not.
"""

from typing import Any

import numpy as np

from keras_bert_flow.records.wire_format import BYTES, FIXED32, VARINT, read_fields, read_varints

_BYTES_LIST, _FLOAT_LIST, _INT64_LIST = 1, 2, 3
_DTYPES = {_BYTES_LIST: np.dtype(object), _FLOAT_LIST: np.dtype(np.float32), _INT64_LIST: np.dtype(np.int64)}
_FIRST, _SECOND, _INT64S, _FLOATS = 0x0A, 0x12, 0x1A, 0x12  # tags of fields 1, 2, 3 and 2, of bytes
_UNPACKED = {_BYTES_LIST: BYTES, _FLOAT_LIST: FIXED32, _INT64_LIST: VARINT}  # wire type of one value


def decode_example(record: bytes) -> dict[str, np.ndarray]:
    """Decode the features of a record: int64, float32 or object (bytes) arrays, (values,), by name.

    As in protobuf, unknown fields are skipped, the lists of a feature are concatenated, and the last of a name and of a
    kind counts. Only a map entry with an unknown field is rejected, as by `tf.io.parse_single_example`: protobuf's
    implementations disagree whether the field is skipped or the entry.

    Raises:
        ValueError: the bytes are not a `tf.train.Example`.
    """
    features = {}
    try:
        for number, wire, start, end in read_fields(record, 0, len(record)):
            if (number, wire) == (1, BYTES):
                for number, wire, first, last in read_fields(record, start, end, depth=1):
                    if (number, wire) == (1, BYTES):
                        name, values = _read_plain_entry(record, first, last) or _read_entry(record, first, last)
                        features[name] = values
    except ValueError as error:
        raise ValueError(f"A record must be a tf.train.Example. Received: {len(record)} other bytes.") from error
    return features


def _read_plain_entry(data: bytes, start: int, end: int) -> tuple[str, np.ndarray] | None:
    """Decode the common layout of numbers, a name and one list of packed values, at twice the speed.

    Each part extends to the end of the one around it, so it is enough to know where it begins. None: another layout.
    """
    if end - start < 2 or data[start + 1] >= 0x80:
        return None
    feature = start + 2 + data[start + 1]
    values = _enter(data, feature, end)
    packed = _enter(data, values, end)
    first = _enter(data, packed, end)
    if first == end or (data[start], data[feature], data[packed]) != (_FIRST, _SECOND, _FIRST):
        return None
    if data[values] == _INT64S:
        numbers = read_varints(data[first:end])
    elif data[values] == _FLOATS:
        numbers = np.frombuffer(data[first:end], "<f4").astype(np.float32)  # ValueError if not of 4 bytes each
    else:
        return None
    return data[start + 2 : feature].decode(), numbers


def _enter(data: bytes, start: int, end: int) -> int:
    """Return where the value of a field begins if the field extends to the end, else the end."""
    if end - start < 2:
        return end
    length, value = data[start + 1], start + 2
    if length >= 0x80:
        if value == end or data[value] >= 0x80:
            return end
        length, value = length & 0x7F | data[value] << 7, value + 1
    return value if length == end - value else end


def _read_entry(data: bytes, start: int, end: int) -> tuple[str, np.ndarray]:
    parts: list[Any]
    name, kind, parts = "", _INT64_LIST, []
    for number, wire, first, last in read_fields(data, start, end, depth=2):
        if wire != BYTES or number > 2:
            raise ValueError("an entry has an unknown field")
        if number == 1:
            name = data[first:last].decode()
            continue
        for field, field_wire, begin, stop in read_fields(data, first, last, depth=3):
            if field_wire == BYTES and field in _DTYPES:
                if field != kind:  # in a oneof, another kind replaces the one before
                    kind, parts = field, []
                parts += _read_list(data, begin, stop, kind)
    if kind == _BYTES_LIST:
        values = np.empty(len(parts), object)
        values[:] = parts
        return name, values
    if len(parts) == 1:
        return name, parts[0]
    return name, np.concatenate(parts) if parts else np.empty(0, _DTYPES[kind])


def _read_list(data: bytes, start: int, end: int, kind: int) -> list:
    """Return bytes objects, or arrays of consecutive numbers."""
    parts: list[Any] = []
    for number, wire, first, last in read_fields(data, start, end, depth=4):
        if number != 1 or wire not in (BYTES, _UNPACKED[kind]):
            continue
        if kind == _BYTES_LIST:
            parts.append(data[first:last])
        elif kind == _FLOAT_LIST:
            parts.append(np.frombuffer(data[first:last], "<f4").astype(np.float32))  # ValueError if not of 4 bytes each
        else:
            parts.append(read_varints(data[first:last]))
    return parts
