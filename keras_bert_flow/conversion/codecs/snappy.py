"""Decompress Snappy, which TensorFlow may use in checkpoint index files.

Source of the format: https://github.com/google/snappy, format_description.txt.
"""

from keras_bert_flow.records.wire_format import read_varint

LITERAL = 0
_SHORT_LITERAL = 60  # longer ones store their length in 1 to 4 bytes
_OFFSET_BYTES = {2: 2, 3: 4}


def decompress(data: bytes, most: int) -> bytes:
    """Return the decompressed data.

    Args:
        most: maximum number of bytes of the result.
    Raises:
        ValueError: the data is not Snappy, or the result is longer.
    """
    length, place = read_varint(data, 0)
    if length > most:
        raise ValueError(f"a block has {length:,} bytes, over {most:,}")
    found = bytearray()
    while place < len(data):
        tag, place = data[place], place + 1
        kind = tag & 3
        if kind == LITERAL:
            count = tag >> 2
            if count >= _SHORT_LITERAL:
                size = count - _SHORT_LITERAL + 1
                count, place = int.from_bytes(data[place : place + size], "little"), place + size
            found += data[place : place + count + 1]
            place += count + 1
        else:
            if kind == 1:
                count, offset = 4 + (tag >> 2 & 7), tag >> 5 << 8 | int.from_bytes(data[place : place + 1])
                place += 1
            else:
                size = _OFFSET_BYTES[kind]
                count, offset, place = (
                    1 + (tag >> 2),
                    int.from_bytes(data[place : place + size], "little"),
                    place + size,
                )
            _copy(found, offset, count)
        if len(found) > length or place > len(data):
            break
    if len(found) != length or place != len(data):
        raise ValueError("a compressed block is not whole")
    return bytes(found)


def _copy(found: bytearray, offset: int, count: int) -> None:
    """Append a copy of `count` bytes from `offset` bytes back; the copy may overlap its source."""
    if not 0 < offset <= len(found):
        raise ValueError("a compressed block copies what is not there")
    pattern = found[-offset:][:count]
    found += (pattern * (count // len(pattern) + 1))[:count]
