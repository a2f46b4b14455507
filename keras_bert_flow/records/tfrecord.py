"""Read and write TFRecord files without TensorFlow, which is heavy and reads them in order only.

Records are read by random access with checksums, and a folder of them is checked before use.
A record is: length (uint64), masked CRC of the length (uint32), data, masked CRC of the data (uint32), little-endian;
the CRC is CRC-32C. Source: tensorflow/core/lib/io/record_writer.h.
"""

import hashlib
import mmap
import struct
from array import array
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from keras_bert_flow.files.inputs import ArrivingBytes, find_carrier
from keras_bert_flow.results.artifacts import OpenedFiles
from keras_bert_flow.results.manifest import FileSummary, Manifest, check_folder

RECORD_SUFFIX = ".tfrecord"
INDEX_SUFFIX = ".index"
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_OVERHEAD_BYTES = _LENGTH.size + 2 * _CRC.size
_OFFSET_BYTES = 8
_MAX_OFFSET = 2**64 - 1
_HELD_OFFSETS = 1 << 16  # before they are written: the file of held-out records grows with the corpus


def name_record_file(part: str, number: int, of: int) -> str:
    """Return the name of record file `number` of `of` in a part, `train` or `held_out`."""
    return f"{part}-{number:05d}-of-{of:05d}{RECORD_SUFFIX}"


def write_tfrecords(path: str | Path, records: Iterable[bytes]) -> list[FileSummary]:
    """Write records and their index, and return the manifest's summaries of both files.

    The index is uint64, little-endian: the offset of each record and, last, the size of the file.
    """
    path = Path(path)
    index_path = path.with_name(path.name + INDEX_SUFFIX)
    digest, index_digest, end, offsets = hashlib.sha256(), hashlib.sha256(), 0, array("Q", [0])
    records = iter(records)
    with open(path, "wb") as file, open(index_path, "wb") as index:
        while True:
            for record in islice(records, _HELD_OFFSETS):
                framed = frame_record(record)
                file.write(framed)
                digest.update(framed)
                end += len(framed)
                offsets.append(end)
            if not offsets:
                break
            content = np.array(offsets, "<u8").tobytes()
            index.write(content)
            index_digest.update(content)
            del offsets[:]
        index_bytes = index.tell()
    return [
        FileSummary(path.name, end, digest.hexdigest(), index_bytes // _OFFSET_BYTES - 1),
        FileSummary(index_path.name, index_bytes, index_digest.hexdigest(), None),
    ]


def frame_record(record: bytes) -> bytes:
    """Return a record as stored in a file, with its length and both checksums."""
    length = _LENGTH.pack(len(record))
    return b"".join((length, _CRC.pack(masked_crc(length)), record, _CRC.pack(masked_crc(record))))


def masked_crc(data: bytes) -> int:
    """Return the CRC-32C, rotated and shifted so that the CRC of data with CRCs stays good (record_writer.h)."""
    crc = google_crc32c.value(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


class TFRecordFile:
    """Random access to the records of one TFRecord file.

    Without an index next to it, as for files of other tools, the offsets are scanned from the file once. For a file
    that is being fetched, the index is local, and records are read from the source.

    Args:
        path: path of the file.
        mapped: memory-map the file; pages that were read count as this process's as long as there is room. If False,
            each record is read from the file.
    """

    def __init__(self, path: str | Path, mapped: bool = True):
        self.path, self._mapped = Path(path), mapped
        self._bytes = self._open()
        index = self.path.with_name(self.path.name + INDEX_SUFFIX)
        if index.exists():
            index_bytes, most = index.stat().st_size, _OFFSET_BYTES * (len(self._bytes) // _OVERHEAD_BYTES + 1)
            if index_bytes > most or index_bytes % _OFFSET_BYTES:
                raise ValueError(
                    f"An index must have the offset of each record. Received: {index}, of {index_bytes:,} bytes for "
                    f"{len(self._bytes):,} bytes of records. Restore the file or rebuild the records."
                )
            self._offsets = np.fromfile(index, "<u8")
        else:
            self._offsets = self._scan()
        if not len(self._offsets) or int(self._offsets[-1]) != len(self._bytes):
            raise ValueError(
                f"A record file must end where its index, or else its last record, says. Received: {self.path}. "
                "Restore the file or rebuild the records."
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, position: int) -> bytes:
        """Return one record.

        Raises:
            IndexError: there is no such record.
            ValueError: its bytes do not have the checksum written with them; the message names file and record.
        """
        if not 0 <= position < len(self):
            raise IndexError(f"A record's number must be below {len(self)}. Received: {position} of {self.path}.")
        start, end = int(self._offsets[position]), int(self._offsets[position + 1])
        framed = self._bytes[start:end]
        length, length_crc = framed[: _LENGTH.size], framed[_LENGTH.size : _LENGTH.size + _CRC.size]
        data, data_crc = framed[_LENGTH.size + _CRC.size : -_CRC.size], framed[-_CRC.size :]
        data_bytes = end - start - _OVERHEAD_BYTES  # negative if the index is damaged
        whole = data_bytes >= 0 and length == _LENGTH.pack(data_bytes)
        if not whole or length_crc != _CRC.pack(masked_crc(length)) or data_crc != _CRC.pack(masked_crc(data)):
            raise ValueError(
                f"A record must have the checksum written with it. Received: record {position} of {self.path}, "
                "damaged. Restore the file or rebuild the records."
            )
        return data

    def __reduce__(self):
        return type(self), (self.path, self._mapped)

    def _open(self) -> Any:  # sliceable like bytes
        index = self.path.with_name(self.path.name + INDEX_SUFFIX)
        if (carrier := find_carrier(self.path)) is not None:
            return ArrivingBytes(self.path, int.from_bytes(index.read_bytes()[-_OFFSET_BYTES:], "little"), carrier)
        if not self._mapped:
            return _FileBytes(self.path)
        with open(self.path, "rb") as file:
            is_empty = not self.path.stat().st_size
            return b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def _scan(self) -> np.ndarray:
        offsets = [0]
        while offsets[-1] < len(self._bytes):
            head = self._bytes[offsets[-1] : offsets[-1] + _LENGTH.size + _CRC.size]
            length = head[: _LENGTH.size]
            if len(head) < _LENGTH.size + _CRC.size or head[_LENGTH.size :] != _CRC.pack(masked_crc(length)):
                break  # the constructor then finds that the file does not end at a record
            offsets.append(min(offsets[-1] + _LENGTH.unpack(length)[0] + _OVERHEAD_BYTES, _MAX_OFFSET))
        return np.array(offsets, "<u8")


class _FileBytes:
    """The bytes of a file, sliceable."""

    def __init__(self, path: Path):
        self._file, self._size = open(path, "rb"), path.stat().st_size  # noqa: SIM115 closed with this object

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: slice) -> bytes:
        start, stop = min(place.start, self._size), min(place.stop, self._size)  # offsets of an index may be damaged
        self._file.seek(start)  # within the buffer if records are read in order
        return self._file.read(max(0, stop - start))


# Check a folder of records against its manifest, before the first record is used.

MAX_SHOWN = 100  # characters of a value


def check_records(folder: str | Path, digests: bool = True, files: OpenedFiles | None = None) -> Manifest:
    """Check a folder of records against its manifest, both ways: nothing missing or changed, and nothing added.

    Args:
        digests: also read every file and compare its sha256, which detects changes that keep the size.
        files: reads the files, each opened once; by default they are opened here.
    Raises:
        FileNotFoundError: the manifest or a file is missing.
        ValueError: a file has another size or content, or is not in the manifest; the message names it.
    """
    manifest = check_folder(folder, "records", digests, files)
    missing = [name for name in ("vocabulary_size", "sequence_length") if name not in manifest.config]
    if missing:
        raise ValueError(f"Records must say their {missing[0]}. Received: {folder}, without. Build the folder again.")
    check_records_config(manifest.config)
    extra = find_extra_files(folder, manifest)
    if extra:
        raise ValueError(
            f"Every file of records must be in the manifest. Received: {Path(folder) / extra[0]}, which is not. "
            "Move it away or build the folder again."
        )
    return manifest


def check_records_config(config: Mapping[str, Any]) -> None:
    """Raise ValueError unless the settings of records in a manifest, if present, have the right types."""
    fraction = config.get("masked_fraction", 0)
    sizes = {name: config.get(name, 1) for name in ("vocabulary_size", "sequence_length", "max_predictions")}
    checks = {name: type(size) is int and 0 < size < 1 << 31 for name, size in sizes.items()}
    checks |= {name: isinstance(config.get(name, ""), str) for name in ("objective", "mask_unit")}
    checks |= {name: isinstance(config.get(name, False), bool) for name in ("cased", "packing")}
    checks |= {"masked_fraction": type(fraction) in (int, float) and 0 <= fraction <= 1}
    for name in (name for name, holds in checks.items() if not holds):
        received = ascii(config[name])[:MAX_SHOWN]
        raise ValueError(
            f"The manifest of records must say how they were made. Received: {name}={received}. Build the folder again."
        )


def find_extra_files(folder: str | Path, manifest: Manifest) -> list[str]:
    """Return the record and index files that are not in the manifest; other files are allowed."""
    names = {path.name for path in Path(folder).iterdir() if path.name.endswith((RECORD_SUFFIX, INDEX_SUFFIX))}
    return sorted(names - {file.name for file in manifest.files})


def check_positions(sequence_length: int, max_positions: int) -> None:
    """Raise ValueError unless a model has positions for every token of the records."""
    if sequence_length > max_positions:
        raise ValueError(
            f"Records must fit the model's {max_positions} positions. Received: records of "
            f"{sequence_length} tokens. Raise model.max_positions or rebuild the records."
        )
