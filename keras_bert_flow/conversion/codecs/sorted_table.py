"""Read and write TensorFlow's sorted tables, the format of a checkpoint's index: LevelDB's table format.

A file is a sequence of data blocks, an index block with the last key and the location of each, and a footer that
locates the index block. A block has entries with prefix-compressed keys, the offsets of those stored in full, and a
checksum. Source: tensorflow/core/lib/io/table_format.txt and block_builder.cc.
"""

import os
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path

from keras_bert_flow.conversion.codecs.snappy import decompress
from keras_bert_flow.records.tfrecord import masked_crc
from keras_bert_flow.records.wire_format import read_varint, write_varint

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
