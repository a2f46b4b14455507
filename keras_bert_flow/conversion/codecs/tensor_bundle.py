"""Read and write TensorFlow checkpoints without TensorFlow, which need not be installed and takes seconds to load.

A checkpoint is an index and data files. The index is a sorted table of Protocol Buffers: a header under the empty key,
and for each tensor its type, shape, shard, offset and checksum. A partitioned variable has one entry that lists its
slices, and one entry per slice.
Source: tensorflow/core/protobuf/tensor_bundle.proto and core/util/tensor_bundle/tensor_bundle.cc.
"""

import math
import os
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.conversion.codecs.safetensors_file import TensorMapping, widen_bfloat16
from keras_bert_flow.records.example import (
    BYTES,
    FIXED32,
    VARINT,
    read_fields,
    read_varint,
    read_varints,
    write_field,
    write_varint,
)
from keras_bert_flow.records.tfrecord import masked_crc

# Decompress Snappy, which TensorFlow may use in checkpoint index files.
#
# Source of the format: https://github.com/google/snappy, format_description.txt.

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


# Read and write TensorFlow's sorted tables, the format of a checkpoint's index: LevelDB's table format.
#
# A file is a sequence of data blocks, an index block with the last key and the location of each, and a footer that
# locates the index block. A block has entries with prefix-compressed keys, the offsets of those stored in full, and a
# checksum. Source: tensorflow/core/lib/io/table_format.txt and block_builder.cc.

MAX_BYTES = 64 << 20  # a BERT of 24 layers with the slots of its optimizer has 60 kB
MAX_KEY_BYTES = 64 << 10
_MAGIC = struct.pack("<Q", 0xDB4775248B80FB57)
_FOOTER_BYTES = 48
_TRAILER = struct.Struct("<BI")  # of a block: compression type, and checksum of the block and that byte
_PLAIN, _SNAPPY = 0, 1
_BLOCK_BYTES = 4096
_RESTART_EVERY = 16
_INT32 = struct.Struct("<I")


def read_table(path: Path) -> dict[bytes, bytes]:
    """Return all keys and their values, in order.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no such table, or is damaged; the message is a clause without the file name.
    """
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_BYTES:
            raise ValueError(f"it has {size:,} bytes, over {MAX_BYTES:,}")
        data = file.read(MAX_BYTES)
    if len(data) < _FOOTER_BYTES or not data.endswith(_MAGIC):
        raise ValueError("it does not end as a table does")
    footer = data[-_FOOTER_BYTES:]
    _, place = _read_place(footer, 0)
    (start, length), _ = _read_place(footer, place)
    found: dict[bytes, bytes] = {}
    left, last = MAX_BYTES, b""  # bytes left for decompressed blocks
    for _, value in _read_entries(_read_block(data, start, length, left)):
        (start, length), _ = _read_place(value, 0)
        block = _read_block(data, start, length, left)
        left -= len(block)
        for key, entry in _read_entries(block):
            if found and key <= last:
                raise ValueError("its keys are not in order")
            found[key], last = entry, key
    return found


def write_table(path: Path, entries: Mapping[bytes, bytes]) -> None:
    """Write keys and their values, without compression."""
    written, index, block = bytearray(), {}, {}
    for key in sorted(entries):
        block[key] = entries[key]
        if sum(map(len, block)) + sum(map(len, block.values())) >= _BLOCK_BYTES:
            index[key], block = _append_block(written, block), {}
    if block:
        index[max(block)] = _append_block(written, block)
    footer = _append_block(written, {}) + _append_block(written, index)
    written += footer.ljust(_FOOTER_BYTES - len(_MAGIC), b"\0") + _MAGIC
    path.write_bytes(written)


def _append_block(written: bytearray, entries: Mapping[bytes, bytes]) -> bytes:
    """Append a block, and return its encoded location."""
    block, restarts, before = bytearray(), [], b""
    for number, (key, value) in enumerate(entries.items()):
        if number % _RESTART_EVERY == 0:
            restarts.append(len(block))
            before = b""
        shared = len(os.path.commonprefix([before, key]))
        for count in (shared, len(key) - shared, len(value)):
            block += write_varint(count)
        block += key[shared:] + value
        before = key
    restarts = restarts or [0]
    block += struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))
    place = write_varint(len(written)) + write_varint(len(block))
    written += block + _TRAILER.pack(_PLAIN, masked_crc(bytes(block) + bytes([_PLAIN])))
    return place


def _read_block(data: bytes, start: int, length: int, most: int) -> bytes:
    end = start + length
    if end + _TRAILER.size > len(data):
        raise ValueError("a block is cut off")
    kind, checksum = _TRAILER.unpack_from(data, end)
    if masked_crc(data[start : end + 1]) != checksum:
        raise ValueError("the checksum of a block is wrong")
    if kind not in (_PLAIN, _SNAPPY):
        raise ValueError("a block is compressed in an unknown way")
    block = data[start:end] if kind == _PLAIN else decompress(data[start:end], most)
    if len(block) > most:
        raise ValueError(f"its blocks have over {MAX_BYTES:,} bytes")
    return block


def _read_entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    end = len(block) - _INT32.size
    if end >= 0:
        end -= _INT32.size * _INT32.unpack_from(block, end)[0]
    if end < 0:
        raise ValueError("a block has no end")
    place, key = 0, b""
    while place < end:
        shared, place = read_varint(block, place)
        rest, place = read_varint(block, place)
        length, place = read_varint(block, place)
        if shared > len(key) or place + rest + length > end:
            raise ValueError("an entry is cut off")
        if shared + rest > MAX_KEY_BYTES:
            raise ValueError(f"a key has {shared + rest:,} bytes, over {MAX_KEY_BYTES:,}")
        key = key[:shared] + block[place : place + rest]
        place += rest + length
        yield key, block[place - length : place]


def _read_place(data: bytes, place: int) -> tuple[tuple[int, int], int]:
    """Decode a block's start and length; return them and the offset after them."""
    start, place = read_varint(data, place)
    length, place = read_varint(data, place)
    return (start, length), place


# TensorFlow's OrderedCode: order-preserving byte encoding, used for the keys of partitioned variables' slices.
#
# Source: tensorflow/core/lib/strings/ordered_code.cc and core/util/saved_tensor_slice_util.cc.

# Number of bytes → leading bits of the first byte, and below of the first two bytes
_FIRST_BYTES = (0, 0x80, 0xC0, 0xE0, 0xF0, 0xF8, 0xFC, 0xFE, 0xFF)
_HEADERS = (*((first, 0) for first in _FIRST_BYTES), (0xFF, 0x80), (0xFF, 0xC0))
_ESCAPED = {0x00: b"\x00\xff", 0xFF: b"\xff\x00"}


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


INDEX_SUFFIX = ".index"
MAX_SHARDS = 100_000  # five digits
MAX_RANK = 254  # maximum rank of a tensor in TensorFlow
_HEADER = b""
_BFLOAT16 = 14
_DTYPES: dict[int, np.dtype] = {  # DataType of tensorflow/core/framework/types.proto
    1: np.dtype("<f4"),
    2: np.dtype("<f8"),
    3: np.dtype("<i4"),
    9: np.dtype("<i8"),
    _BFLOAT16: np.dtype("<u2"),
    19: np.dtype("<f2"),
}
_NUMBERS = {dtype: number for number, dtype in _DTYPES.items() if number != _BFLOAT16}
_CHECKSUM = struct.Struct("<I")

Extents = tuple[tuple[int, int], ...]  # start and length of each axis; (0, -1) denotes a whole axis


class _Entry(NamedTuple):
    dtype: int
    shape: tuple[int, ...]
    shard: int
    start: int
    size: int
    checksum: int
    slices: tuple[Extents, ...]


class _Place(NamedTuple):
    """Location of a tensor: one entry, or several slices along an axis."""

    dtype: int
    shape: tuple[int, ...]
    parts: tuple[_Entry, ...]
    axis: int = 0


class TensorBundle(TensorMapping):
    """The tensors of a checkpoint, read and checked lazily, in their own dtypes; bfloat16 as float32.

    Non-numeric tensors, such as the strings that TensorFlow 2 also stores, are left out.

    Attributes:
        path: the index.
        shapes: name → shape.
    """

    def __init__(self, path: Path, files: list[Path], places: Mapping[str, _Place]):
        self.shapes, self.path = {name: place.shape for name, place in places.items()}, path
        self._files, self._places = files, places

    def is_float(self, name: str) -> bool:
        return self._places[name].dtype == _BFLOAT16 or _DTYPES[self._places[name].dtype].kind == "f"

    def __getitem__(self, name: str) -> np.ndarray:
        place = self._places[name]
        parts = [self._read(name, part) for part in place.parts]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=place.axis)

    def _read(self, name: str, part: _Entry) -> np.ndarray:
        path = self._files[part.shard]
        with open(path, "rb") as file:
            file.seek(part.start)
            data = file.read(part.size)
        if len(data) != part.size or masked_crc(data) != part.checksum:
            raise ValueError(f"{path}: the checksum of {abridge(ascii(name))} is wrong. Copy it again.")
        array = np.frombuffer(data, _DTYPES[part.dtype])
        if part.dtype == _BFLOAT16:
            array = widen_bfloat16(array)
        return array.reshape(part.shape)


def open_bundle(prefix: str | Path) -> TensorBundle:
    """Open a checkpoint, after checking its index against the sizes of its files.

    Args:
        prefix: the path without `.index`.
    Raises:
        FileNotFoundError: a file is missing.
        OSError: a file cannot be read.
        ValueError: it is no checkpoint, or is incomplete.
    """
    path = Path(f"{prefix}{INDEX_SUFFIX}")
    if not path.is_file():
        raise FileNotFoundError(f"A checkpoint of TensorFlow must have an index. Received: {path}, which is not there.")
    try:
        table = read_table(path)
        shards = _read_header(table.pop(_HEADER, None))
        entries = {key: _read_entry(value) for key, value in table.items()}
    except ValueError as error:
        raise ValueError(f"{path}: not a whole index of a checkpoint ({error}). Copy it again.") from None
    files = [name_shard(prefix, number, shards) for number in range(shards)]
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(
                f"A checkpoint must be whole. Received: {path}, without {file.name}. Copy that too."
            )
    try:
        places = _find_places(entries, [file.stat().st_size for file in files])
    except ValueError as error:
        raise ValueError(f"{path}: does not fit its data ({error}). Copy them again.") from None
    return TensorBundle(path, files, places)


def write_bundle(prefix: str | Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write a checkpoint of one shard, readable by TensorFlow 1 and 2.

    Args:
        tensors: float32, float64, float16, int32 or int64.
    """
    version = write_field(1, VARINT, write_varint(1))  # producer version
    entries = {_HEADER: write_field(1, VARINT, write_varint(1)) + write_field(3, BYTES, version)}
    place = 0
    with open(name_shard(prefix, 0, 1), "wb") as file:
        for name in sorted(tensors):
            array = np.asarray(tensors[name])
            data = array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            file.write(data)
            sizes = b"".join(write_field(2, BYTES, write_field(1, VARINT, write_varint(size))) for size in array.shape)
            integers = {1: _NUMBERS[array.dtype.newbyteorder("<")], 4: place, 5: len(data)}
            fields = {
                field: write_field(field, VARINT, write_varint(value)) for field, value in integers.items() if value
            }
            fields[2] = write_field(2, BYTES, sizes)
            fields[6] = write_field(6, FIXED32, _CHECKSUM.pack(masked_crc(data)))
            entries[name.encode()] = b"".join(fields[number] for number in sorted(fields))
            place += len(data)
    write_table(Path(f"{prefix}{INDEX_SUFFIX}"), entries)


def name_shard(prefix: str | Path, number: int, of: int) -> Path:
    """Return the path of a data file."""
    return Path(f"{prefix}.data-{number:05d}-of-{of:05d}")


def _read_header(message: bytes | None) -> int:
    """Return the number of shards."""
    if message is None:
        raise ValueError("it has no header")
    fields = _read_message(message)
    shards, endianness = _read_integer(fields, 1), _read_integer(fields, 2)
    if endianness:
        raise ValueError("its numbers are in big-endian order")
    if not 0 < shards < MAX_SHARDS:
        raise ValueError(f"it has {shards} shards")
    return shards


def _read_entry(message: bytes) -> _Entry:
    fields = _read_message(message)
    checksums = fields.get(6, [b"\0" * _CHECKSUM.size])
    slices = tuple(
        tuple(
            (_read_integer(extent, 1), _read_integer(extent, 2) if 2 in extent else -1)
            for extent in map(_read_message, _read_message(value).get(1, ()))
        )
        for value in fields.get(7, ())
    )
    shape = [_read_integer(_read_message(size), 1) for size in _read_message(*fields.get(2, [b""])[-1:]).get(2, ())]
    return _Entry(
        _read_integer(fields, 1),
        tuple(shape),
        _read_integer(fields, 3),
        _read_integer(fields, 4),
        _read_integer(fields, 5),
        _CHECKSUM.unpack(checksums[-1])[0],
        slices,
    )


def _read_message(data: bytes) -> dict[int, list[bytes]]:
    """Return the encoded values of each field."""
    found: dict[int, list[bytes]] = {}
    for number, _, start, end in read_fields(data, 0, len(data)):
        found.setdefault(number, []).append(data[start:end])
    return found


def _read_integer(fields: Mapping[int, list[bytes]], number: int) -> int:
    """Return the last value of a field, or 0 if it is absent."""
    return int(read_varints(fields[number][-1])[-1]) if number in fields else 0


def _find_places(entries: Mapping[bytes, _Entry], sizes: list[int]) -> dict[str, _Place]:
    """Return the location of each tensor, after checking that it exists."""
    places = {}
    for key, entry in entries.items():
        if key.startswith(b"\0") or entry.dtype not in _DTYPES:  # a slice of another tensor, or not numeric
            continue
        name = key.decode(errors="backslashreplace")
        place = _join_parts(key, entry, entries) if entry.slices else _Place(entry.dtype, entry.shape, (entry,))
        if place is None:
            raise ValueError(f"the parts of {abridge(ascii(name))} do not make a whole along one axis")
        for part in place.parts:
            is_there = (
                len(part.shape) <= MAX_RANK
                and min(part.shape, default=0) >= 0
                and 0 <= part.shard < len(sizes)
                and part.size == math.prod(part.shape) * _DTYPES[part.dtype].itemsize
                and 0 <= part.start <= sizes[part.shard] - part.size
            )
            if not is_there:
                raise ValueError(f"{abridge(ascii(name))} is not where it should be, or of another size")
        places[name] = place
    return places


def _join_parts(key: bytes, entry: _Entry, entries: Mapping[bytes, _Entry]) -> _Place | None:
    """Return the locations of a tensor's slices; None unless they tile the tensor along one axis."""
    if any(len(extents) != len(entry.shape) for extents in entry.slices):
        return None
    cut = {
        axis
        for extents in entry.slices
        for axis, (extent, size) in enumerate(zip(extents, entry.shape, strict=True))
        if extent not in ((0, -1), (0, size))
    }
    if len(cut) > 1:
        return None
    axis, end, parts = min(cut, default=0), 0, []
    for extents in sorted(entry.slices, key=lambda extents: extents[axis : axis + 1]):
        part = entries.get(name_slice(key, extents))
        start, length = extents[axis] if cut else (0, (*entry.shape, 1)[0])
        wanted = tuple(length if place == axis else size for place, size in enumerate(entry.shape))
        if part is None or start != end or part.shape != wanted or part.dtype != entry.dtype:
            return None
        parts.append(part)
        end += length
    return _Place(entry.dtype, entry.shape, tuple(parts), axis) if end == (*entry.shape, 1)[axis] else None
