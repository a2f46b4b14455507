"""TensorFlow's OrderedCode: order-preserving byte encoding, used for the keys of partitioned variables' slices.

Source: tensorflow/core/lib/strings/ordered_code.cc and core/util/saved_tensor_slice_util.cc.
"""

from collections.abc import Iterable

# Number of bytes → leading bits of the first byte, and below of the first two bytes
_FIRST_BYTES = (0, 0x80, 0xC0, 0xE0, 0xF0, 0xF8, 0xFC, 0xFE, 0xFF)
_HEADERS = (*((first, 0) for first in _FIRST_BYTES), (0xFF, 0x80), (0xFF, 0xC0))
_ESCAPED = {0x00: b"\x00\xff", 0xFF: b"\xff\x00"}
WHOLE = (0, -1)  # start and length of an axis that is not partitioned


def name_slice(name: bytes, extents: Iterable[tuple[int, int]]) -> bytes:
    """Return the key of a slice of a tensor, given the start and length of each axis."""
    extents = list(extents)
    key = write_number(0) + write_text(name) + write_number(len(extents))
    return key + b"".join(write_signed(number) for extent in extents for number in extent)


def write_number(number: int) -> bytes:
    """Encode a non-negative integer as its length in bytes and its big-endian bytes."""
    size = (number.bit_length() + 7) // 8
    return bytes([size]) + number.to_bytes(size)


def write_text(text: bytes) -> bytes:
    """Encode a byte string: escaped, and followed by a terminator that cannot occur in it."""
    return b"".join(_ESCAPED.get(byte, bytes([byte])) for byte in text) + b"\x00\x01"


def write_signed(number: int) -> bytes:
    """Encode an int64: the number of leading one bits is the number of bytes, inverted for a negative number."""
    size = max(1, ((number if number >= 0 else ~number).bit_length() + 7) // 7)
    written = bytearray((number & (1 << 8 * size) - 1).to_bytes(size))
    for place in range(min(2, size)):
        written[place] ^= _HEADERS[size][place]
    return bytes(written)
