"""Write keys whose bytes are in the order of what they stand for: parts of partitioned variables have such.

Source: tensorflow/core/lib/strings/ordered_code.cc and core/util/saved_tensor_slice_util.cc.
"""

from collections.abc import Iterable

# Number of bytes → the bits that its first two bytes begin with
_FIRST_BYTES = (0, 0x80, 0xC0, 0xE0, 0xF0, 0xF8, 0xFC, 0xFE, 0xFF)
_HEADERS = (*((first, 0) for first in _FIRST_BYTES), (0xFF, 0x80), (0xFF, 0xC0))
_ESCAPED = {0x00: b"\x00\xff", 0xFF: b"\xff\x00"}
WHOLE = (0, -1)  # start and length of an axis that is not cut


def name_slice(name: bytes, extents: Iterable[tuple[int, int]]) -> bytes:
    """Return the key of a part of a tensor, by the start and length of each axis."""
    extents = list(extents)
    key = write_number(0) + write_text(name) + write_number(len(extents))
    return key + b"".join(write_signed(number) for extent in extents for number in extent)


def write_number(number: int) -> bytes:
    """Write a number from 0, by its length and its bytes, the highest first."""
    size = (number.bit_length() + 7) // 8
    return bytes([size]) + number.to_bytes(size)


def write_text(text: bytes) -> bytes:
    """Write a text with an end, which it cannot hold."""
    return b"".join(_ESCAPED.get(byte, bytes([byte])) for byte in text) + b"\x00\x01"


def write_signed(number: int) -> bytes:
    """Write an int64: as many bits as bytes come first, inverted in a negative one."""
    size = max(1, ((number if number >= 0 else ~number).bit_length() + 7) // 7)
    written = bytearray((number & (1 << 8 * size) - 1).to_bytes(size))
    for place in range(min(2, size)):
        written[place] ^= _HEADERS[size][place]
    return bytes(written)
