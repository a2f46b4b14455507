"""Read and write the wire format of Protocol Buffers, without protobuf.

A message is a sequence of fields: a tag (field number and wire type), then a varint, 4 bytes, 8 bytes, or a length and
as many bytes. A varint has seven bits per byte, lowest first, with the highest bit set in all bytes but the last. Input
is rejected if protobuf rejects it. Source: protobuf.dev, "Encoding".

Nothing here is shared between threads. protobuf's own descriptors are, and reading them from several threads crashed
(upb of protobuf 6.33).
"""

from collections.abc import Iterator

import numpy as np

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
