"""`tf.train.Example` of pre-training records, without TensorFlow (too heavy) and protobuf (crashed in threads).

Wire format, decoding, encoding in batches, and the schema of the records. Field numbers are those of
tensorflow/core/example/feature.proto and example.proto:
Example{1: Features}, Features{1: entries of a map}, entry{1: name, 2: Feature},
Feature{1: bytes, 2: floats, 3: int64s};
each of these three is a list with its values in field 1, packed or not.
"""

import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

# Read and write the wire format of Protocol Buffers, without protobuf.
#
# A message is a sequence of fields: a tag (field number and wire type), then a varint, 4 bytes, 8 bytes, or a length
# and as many bytes. A varint has seven bits per byte, lowest first, with the highest bit set in all bytes but the last.
# Input is rejected if protobuf rejects it. Source: protobuf.dev, "Encoding".
#
# Nothing here is shared between threads. protobuf's own descriptors are, and reading them from several threads crashed
# (upb of protobuf 6.33).

VARINT, FIXED64, BYTES, _GROUP, _END_GROUP, FIXED32 = range(6)
MAX_DEPTH = 100  # of nested messages and groups
_LENGTH_BYTES = 5  # of the longest tag or length, including leading zeros
_VARINT_BYTES = 10  # seven bits each: bits above 64 are dropped, as in protobuf

Field = tuple[int, int, int, int]  # field number, wire type, start and end of the value


def read_fields(data: bytes, start: int, end: int, depth: int = 0) -> Iterator[Field]:
    """Yield the fields of a message in order; `depth` is the depth of the message, 0 outermost.

    Raises:
        ValueError: the bytes from `start` to `end` are not a message.
    """
    while start < end:
        tag = data[start]
        start += 1
        if tag >= 0x80:
            tag, start = _read_short_varint(data, start - 1, end)
        number, wire = tag >> 3, tag & 7
        if wire == BYTES:
            length, start = _read_length(data, start, end)
            stop = start + length
        else:
            stop = _skip(data, start, end, number, wire, depth)
        if stop > end or not number:
            raise ValueError("a field is cut off, or has no number")
        yield number, wire, start, stop
        start = stop


def read_varints(packed: bytes) -> np.ndarray:
    """Decode consecutive varints to int64, (values,).

    Raises:
        ValueError: a varint is cut off or too long.
    """
    data = np.frombuffer(packed, np.uint8)
    if packed.isascii():  # a byte each
        return data.astype(np.int64)
    if packed[-1] >= 0x80:
        raise ValueError("a varint is cut off")
    ends = np.flatnonzero(data < 0x80)
    starts = np.zeros_like(ends)
    np.add(ends[:-1], 1, out=starts[1:])
    widths = ends - starts + 1
    if widths.max() > _VARINT_BYTES:
        raise ValueError("a varint is too long")
    shifts = 7 * (np.arange(len(data)) - starts.repeat(widths))
    return np.add.reduceat((data & 0x7F).astype(np.int64) << shifts, starts)


def read_varint(data: bytes, place: int) -> tuple[int, int]:
    """Return the number that begins at a position, of up to ten bytes, and where it ends.

    Raises:
        ValueError: it is cut off or too long.
    """
    value = 0
    for shift, byte in enumerate(data[place : place + _VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, place + shift + 1
    raise ValueError("a number is cut off")


def write_varint(value: int) -> bytes:
    """Encode an int64 as a varint."""
    value &= (1 << 64) - 1
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*written, value))


def write_field(number: int, wire: int, value: bytes) -> bytes:
    """Encode a field; `value` is already encoded, except for the length of `BYTES`."""
    length = write_varint(len(value)) if wire == BYTES else b""
    return write_varint(number << 3 | wire) + length + value


def _read_length(data: bytes, start: int, end: int) -> tuple[int, int]:
    length, start = _read_short_varint(data, start, end)
    if length >> 31:
        raise ValueError("a length has more than 31 bits")
    return length, start


def _read_short_varint(data: bytes, start: int, end: int) -> tuple[int, int]:
    value = 0
    for place in range(_LENGTH_BYTES):
        if start + place >= end:
            raise ValueError("a varint is cut off")
        byte = data[start + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            if value >> 32:
                break
            return value, start + place + 1
    raise ValueError("a tag or length has more than 32 bits")


def _skip(data: bytes, start: int, end: int, number: int, wire: int, depth: int) -> int:
    """Return where a value ends."""
    if wire == VARINT:
        for place in range(start, min(start + _VARINT_BYTES, end)):
            if data[place] < 0x80:
                return place + 1
    elif wire in (FIXED32, FIXED64):
        return start + (4 if wire == FIXED32 else 8)
    elif wire == BYTES:
        length, start = _read_length(data, start, end)
        return start + length
    elif wire == _GROUP and depth < MAX_DEPTH:
        while start < end:
            tag, start = _read_short_varint(data, start, end)
            if tag == number << 3 | _END_GROUP:
                return start
            if not tag >> 3:
                break
            start = _skip(data, start, end, tag >> 3, tag & 7, depth + 1)
    raise ValueError("a value is cut off or has another wire type")


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


# Write scalars to TensorBoard event files, without TensorFlow or TensorBoard.
#
# Field numbers and types are those of tensorflow/core/util/event.proto and framework/summary.proto, limited to what a
# scalar needs. The file is a TFRecord file.

_VERSION = b"brain.Event:2"  # in the first record of a file
_WALL_TIME, _STEP, _FILE_VERSION, _SUMMARY = 1, 2, 3, 5  # of Event
_VALUE = 1  # of Summary
_TAG, _SIMPLE_VALUE = 1, 2  # of Value


def encode_header(wall_time: float) -> bytes:
    """Return the first record of a file; `wall_time` is in seconds since 1970."""
    stamp = write_field(_WALL_TIME, FIXED64, struct.pack("<d", wall_time)) if wall_time else b""
    return stamp + write_field(_FILE_VERSION, BYTES, _VERSION)


def encode_scalars(step: int, wall_time: float, scalars: Mapping[str, float]) -> bytes:
    """Return the record of a step; values are stored as float32."""
    values = b""
    for tag, value in scalars.items():
        with np.errstate(over="ignore"):  # infinite in float32, as in protobuf
            number = write_field(_SIMPLE_VALUE, FIXED32, np.float64(value).astype("<f4").tobytes())
        values += write_field(_VALUE, BYTES, write_field(_TAG, BYTES, tag.encode()) + number)
    # protobuf leaves out zeros.
    stamp = write_field(_WALL_TIME, FIXED64, struct.pack("<d", wall_time)) if wall_time else b""
    counted = write_field(_STEP, VARINT, write_varint(step)) if step else b""
    return stamp + counted + (write_field(_SUMMARY, BYTES, values) if values else b"")


# Encode batches of `tf.train.Example` records of one shape: protobuf's bytes, several times faster.
#
# The bytes of a batch are laid out in columns, one row per record, as wide as the longest; a second matrix marks which
# of them a record has. Protocol Buffers encode an integer as a varint: seven bits per byte, lowest first, with the
# highest bit set in all bytes but the last. Source: protobuf.dev, "Encoding"; field numbers as in `example`.

_INT64_LIST_TAG, _FLOAT_LIST_TAG = b"\x1a", b"\x12"  # tags of Feature
_FIRST_TAG, _SECOND_TAG = b"\x0a", b"\x12"  # tags of fields 1 and 2, each a length and bytes

# (bytes, (records, width) uint8; which of them are present, the same shape, or None for all)
_Columns = tuple[np.ndarray, np.ndarray | None]


def encode_examples(features: Mapping[str, np.ndarray]) -> list[bytes]:
    """Serialise records to the bytes that TensorFlow gives for each row, with features sorted by name.

    Args:
        features: name → (records, values), neither dimension 0: non-negative integers, or floats. No name is a prefix
            of another.
    Raises:
        ValueError: an integer is negative.
    """
    columns: list[_Columns] = []
    for name, values in sorted(features.items(), key=lambda item: item[0].encode()):
        payload: _Columns
        if values.dtype.kind == "f":
            tag, payload = _FLOAT_LIST_TAG, (np.ascontiguousarray(values, "<f4").view(np.uint8), None)
        else:
            tag, payload = _INT64_LIST_TAG, _encode_varints(values)
        feature = _with_length(tag, _with_length(_FIRST_TAG, [payload]))
        key: _Columns = np.frombuffer(name.encode(), np.uint8)[None], None  # (1, bytes)
        entry = [*_with_length(_FIRST_TAG, [key]), *_with_length(_SECOND_TAG, feature)]
        columns += _with_length(_FIRST_TAG, entry)
    columns = _with_length(_FIRST_TAG, columns)
    rows = max(len(data) for data, _ in columns)
    widths = [data.shape[1] for data, _ in columns]
    data = np.empty((rows, sum(widths)), np.uint8)
    is_there = np.ones(data.shape, bool)
    start = 0
    for (part, part_is_there), width in zip(columns, widths, strict=True):
        data[:, start : start + width] = part
        if part_is_there is not None:
            is_there[:, start : start + width] = part_is_there
        start += width
    ends = np.cumsum(is_there.sum(axis=1)).tolist()
    joined = data[is_there].tobytes()
    return [joined[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def _encode_varints(values: np.ndarray) -> _Columns:
    """Return the varints of each row side by side, all as wide as the widest."""
    if values.min() < 0:
        raise ValueError(f"Integers of a batch must not be negative. Received: {values.min()}.")
    width = max(1, -(-int(values.max()).bit_length() // 7))
    if width == 1:
        return values.astype(np.uint8), None
    data = np.empty((*values.shape, width), np.uint8)
    is_there = np.empty(data.shape, bool)
    for place in range(width):
        rest = values >> (7 * place)
        data[..., place] = rest & 0x7F | (rest > 0x7F) * np.uint8(0x80)
        is_there[..., place] = rest > 0 if place else True
    return data.reshape(len(values), -1), is_there.reshape(len(values), -1)


def _with_length(tag: bytes, columns: list[_Columns]) -> list[_Columns]:
    """Prepend a tag and the length in bytes to a message."""
    fixed = sum(data.shape[1] for data, is_there in columns if is_there is None)
    lengths = [is_there.sum(axis=1, dtype=np.int64) for _, is_there in columns if is_there is not None]
    length = np.asarray(fixed + sum(lengths), np.int64).reshape(-1, 1)  # (records, 1), or (1, 1) if all are equal
    return [(np.frombuffer(tag, np.uint8)[None], None), _encode_varints(length), *columns]  # the tag: (1, 1)


# Schema of pre-training records: features named as in google-research/bert, so that its trainers read our files.
#
# The meaning of `next_sentence_labels` depends on the objective, which is in the manifest of the records: `mlm_nsp`, 1
# if B is random; `mlm_sop`, 1 if A and B are swapped; `mlm` has one text and no such label: always 0, and never read.
#
# Source: google-research/bert, create_pretraining_data.py, `write_instance_to_example_files`.

FEATURE_KINDS = {  # NumPy's kind of each type
    "input_ids": "i",  # (sequence_length,)
    "input_mask": "i",  # (sequence_length,), 1 for a token, in packed records the number of its text; 0 for padding
    "segment_ids": "i",  # (sequence_length,)
    "masked_lm_positions": "i",  # (max_predictions,)
    "masked_lm_ids": "i",  # (max_predictions,)
    "masked_lm_weights": "f",  # (max_predictions,), 1.0 for a prediction, 0.0 for filler
    "next_sentence_labels": "i",  # (1,), 0 where B follows A, 1 where it does not
}
# Of objectives with spans alone: (max_predictions,), int. 1, 2, ... for the tokens of each span, 0 for filler.
SPAN_IDS = "masked_lm_span_ids"


def encode_records(
    *,
    token_ids: np.ndarray,
    segment_ids: np.ndarray,
    lengths: np.ndarray,
    mask_positions: np.ndarray,
    mask_ids: np.ndarray,
    mask_counts: np.ndarray,
    sentence_labels: np.ndarray,
    span_ids: np.ndarray | None = None,
    text_numbers: np.ndarray | None = None,
) -> list[bytes]:
    """Serialise masked instances, one or more.

    Args:
        token_ids: int, (records, sequence_length), with some tokens replaced, padded with zeros.
        segment_ids: int, (records, sequence_length), padded with zeros.
        lengths: int, (records,). Tokens of each.
        mask_positions: int, (records, max_predictions), padded with zeros.
        mask_ids: int, (records, max_predictions), padded with zeros.
        mask_counts: int, (records,). Predictions of each.
        sentence_labels: bool, (records,).
        span_ids: int, (records, max_predictions), for objectives with spans; None: not written.
        text_numbers: int, (records, sequence_length), for packed records; None: one text a record.
    """
    input_mask = np.arange(token_ids.shape[1]) < lengths[:, None] if text_numbers is None else text_numbers
    weights = np.arange(mask_ids.shape[1]) < mask_counts[:, None]
    return encode_examples(
        {
            "input_ids": token_ids,
            "input_mask": input_mask.astype(np.uint16),
            "segment_ids": segment_ids,
            "masked_lm_positions": mask_positions,
            "masked_lm_ids": mask_ids,
            "masked_lm_weights": weights.astype(np.float32),
            "next_sentence_labels": sentence_labels[:, None].astype(np.uint8),
        }
        | ({} if span_ids is None else {SPAN_IDS: span_ids})
    )


def decode_record(record: bytes) -> Mapping[str, np.ndarray]:
    """Decode the features of a record by name, those of FEATURE_KINDS, padding included.

    Raises:
        ValueError: a feature is missing or has another type; the message names it.
    """
    features = decode_example(record)
    for name, kind in FEATURE_KINDS.items():
        if name not in features or features[name].dtype.kind != kind:
            raise ValueError(
                f"A record must hold the feature `{name}`. Received: {sorted(features)}. Rebuild the records."
            )
    return features
