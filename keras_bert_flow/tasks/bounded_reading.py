"""Read the bytes of a task's file, plain or gzip, with limits, so that no file fills the memory of a reader."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from keras_bert_flow.text.unpacking import unpack

MAX_LINE_BYTES = 16 << 20
MAX_FILE_BYTES = 1 << 30  # of a file that is read whole
FREELY_UNPACKED_BYTES = 16 << 20
MAX_PACKING_RATIO = 100  # of what unpacks to more than that; text has 3 to 10, and at most 1,032 is possible
_PIECE_BYTES = 1 << 20


def read_byte_lines(path: str, may_be_packed: bool = True) -> Iterator[bytes]:
    """Yield the lines of a file, each with its line feed, unpacked if the name ends in .gz.

    Raises:
        ValueError: a .gz file is damaged or unpacks to far more than text would, or a line is too long.
    """
    with _open(path, may_be_packed) as (file, check_unpacked):
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
    """Return the content of a file, unpacked if the name ends in .gz; errors as for `read_byte_lines`."""
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
def _open(path: str, may_be_packed: bool = True) -> Iterator[tuple[BinaryIO, "_PackingCheck"]]:
    with open(path, "rb") as packed:
        if not (may_be_packed and path.endswith(".gz")):
            yield packed, lambda _: None
            return
        file = _WholeGzip(unpack(packed, ".gz"), path)
        yield file, _PackingCheck(path, os.fstat(packed.fileno()).st_size)


class _WholeGzip:
    """Reads gzip and names the file where it is damaged."""

    def __init__(self, file: BinaryIO, path: str):
        self._file, self._path = file, path

    def read(self, size: int) -> bytes:
        return self._read(self._file.read, size)

    def readline(self, size: int) -> bytes:
        return self._read(self._file.readline, size)

    def _read(self, function, size: int) -> bytes:
        try:
            return function(size)
        except (EOFError, OSError, ValueError):
            raise ValueError(
                f"A .gz file must be whole gzip. Received: {self._path}. Fetch or compress it again."
            ) from None


class _PackingCheck:
    def __init__(self, path: str, packed_bytes: int):
        self._path, self._packed_bytes = path, packed_bytes

    def __call__(self, unpacked_bytes: int) -> None:
        if unpacked_bytes > max(FREELY_UNPACKED_BYTES, MAX_PACKING_RATIO * self._packed_bytes):
            raise ValueError(
                f"A .gz file must unpack to at most {MAX_PACKING_RATIO} times its size. Received: {self._path}, of "
                f"{self._packed_bytes:,} bytes, with more. If you trust it, unpack it with gunzip."
            )
