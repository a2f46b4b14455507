"""Read plain or compressed files of a task with size limits, so that no file fills the memory."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

from keras_bert_flow.text.corpus.unpacking import PACKED_SUFFIXES, unpack

MAX_LINE_BYTES = 16 << 20
MAX_FILE_BYTES = 1 << 30  # of a file that is read whole
FREELY_UNPACKED_BYTES = 16 << 20
MAX_PACKING_RATIO = 100  # above that size; text has 3 to 10, and at most 1,032 is possible
GZIP = (".gz",)
ANY_PACKING = PACKED_SUFFIXES
_PIECE_BYTES = 1 << 20
# suffix → name of the format, command that unpacks it
_FORMATS = {
    ".gz": ("gzip", "gunzip"),
    ".bz2": ("bzip2", "bunzip2"),
    ".xz": ("xz", "unxz"),
    ".zst": ("Zstandard", "unzstd"),
}


def read_byte_lines(path: str, packed_as: Sequence[str] = GZIP) -> Iterator[bytes]:
    """Yield the lines of a file, each with its line feed.

    Args:
        packed_as: files whose names end in one of these suffixes are decompressed.
    Raises:
        ValueError: a compressed file is damaged or expands to far more than text would, or a line is too long.
    """
    with _open(path, packed_as) as (file, check_unpacked):
        unpacked = 0
        for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES + 1), b""), 1):
            if len(line) > MAX_LINE_BYTES:
                raise ValueError(
                    f"{path}, row {number}: a row must have at most {MAX_LINE_BYTES >> 20} MiB. Received: more. "
                    "Cut it, or look for missing line ends."
                )
            check_unpacked(unpacked := unpacked + len(line))
            yield line


def read_whole(path: str) -> bytes:
    """Return the content of a file, decompressed if the name ends in .gz; errors as for `read_byte_lines`."""
    pieces, size = [], 0
    with _open(path) as (file, check_unpacked):
        while piece := file.read(_PIECE_BYTES):
            pieces.append(piece)
            check_unpacked(size := size + len(piece))
            if size > MAX_FILE_BYTES:
                raise ValueError(
                    f"{path}: a file must have at most {MAX_FILE_BYTES >> 20:,} MiB. Received: more. Split it, or give "
                    "a .jsonl."
                )
    return b"".join(pieces)


@contextmanager
def _open(
    path: str, packed_as: Sequence[str] = GZIP
) -> Iterator[tuple["BinaryIO | _WholeFile", Callable[[int], None]]]:
    suffix = next((suffix for suffix in packed_as if path.endswith(suffix)), None)
    with open(path, "rb") as packed:
        if suffix is None:
            yield packed, lambda _: None
            return
        file = _WholeFile(unpack(packed, suffix), path, suffix)
        yield file, _PackingCheck(path, suffix, os.fstat(packed.fileno()).st_size)


class _WholeFile:
    """Reader of a decompressed stream whose errors name the file if it is damaged."""

    def __init__(self, file: BinaryIO, path: str, suffix: str):
        self._file, self._path, self._suffix = file, path, suffix

    def read(self, size: int) -> bytes:
        return self._read(self._file.read, size)

    def readline(self, size: int) -> bytes:
        return self._read(self._file.readline, size)

    def _read(self, function, size: int) -> bytes:
        try:
            return function(size)
        except (EOFError, OSError, ValueError):
            raise ValueError(
                f"A {self._suffix} file must be whole {_FORMATS[self._suffix][0]}. Received: {self._path}. "
                "Fetch or compress it again."
            ) from None


class _PackingCheck:
    def __init__(self, path: str, suffix: str, packed_bytes: int):
        self._path, self._suffix, self._packed_bytes = path, suffix, packed_bytes

    def __call__(self, unpacked_bytes: int) -> None:
        if unpacked_bytes > max(FREELY_UNPACKED_BYTES, MAX_PACKING_RATIO * self._packed_bytes):
            raise ValueError(
                f"A {self._suffix} file must decompress to at most {MAX_PACKING_RATIO} times its size. Received: "
                f"{self._path}, of {self._packed_bytes:,} bytes, with more. If you trust it, decompress it with "
                f"{_FORMATS[self._suffix][1]}."
            )
