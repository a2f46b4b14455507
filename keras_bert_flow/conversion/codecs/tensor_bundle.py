"""Read and write TensorFlow checkpoints, `PREFIX.index` and `PREFIX.data-00000-of-00001`, without TensorFlow.

The index is a sorted table of Protocol Buffers: a header under the empty key, and for each tensor its type, shape,
shard, offset and checksum. A partitioned variable has one entry that lists its slices, and one entry per slice.
Source: tensorflow/core/protobuf/tensor_bundle.proto and core/util/tensor_bundle/tensor_bundle.cc.
"""

import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_bert_flow.conversion.codecs.ordered_code import name_slice
from keras_bert_flow.conversion.codecs.sorted_table import read_table, write_table
from keras_bert_flow.conversion.codecs.tensors import TensorMapping, widen_bfloat16
from keras_bert_flow.records.tfrecord import masked_crc
from keras_bert_flow.records.wire_format import (
    BYTES,
    FIXED32,
    VARINT,
    read_fields,
    read_varints,
    write_field,
    write_varint,
)
from keras_bert_flow.terminal import abridge

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
        super().__init__({name: place.shape for name, place in places.items()}, path)
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
            entries[name.encode()] = _write_entry(array, place, data)
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
    slices = tuple(_read_slice(value) for value in fields.get(7, ()))
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


def _read_slice(message: bytes) -> Extents:
    extents = []
    for value in _read_message(message).get(1, ()):
        fields = _read_message(value)
        extents.append((_read_integer(fields, 1), _read_integer(fields, 2) if 2 in fields else -1))
    return tuple(extents)


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
        if not all(_is_there(part, sizes) for part in place.parts):
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


def _is_there(part: _Entry, sizes: list[int]) -> bool:
    return (
        len(part.shape) <= MAX_RANK
        and min(part.shape, default=0) >= 0
        and 0 <= part.shard < len(sizes)
        and part.size == math.prod(part.shape) * _DTYPES[part.dtype].itemsize
        and 0 <= part.start <= sizes[part.shard] - part.size
    )


def _write_entry(array: np.ndarray, place: int, data: bytes) -> bytes:
    sizes = b"".join(write_field(2, BYTES, write_field(1, VARINT, write_varint(size))) for size in array.shape)
    integers = {1: _NUMBERS[array.dtype.newbyteorder("<")], 4: place, 5: len(data)}
    written = {number: write_field(number, VARINT, write_varint(value)) for number, value in integers.items() if value}
    written[2] = write_field(2, BYTES, sizes)
    written[6] = write_field(6, FIXED32, _CHECKSUM.pack(masked_crc(data)))
    return b"".join(written[number] for number in sorted(written))
