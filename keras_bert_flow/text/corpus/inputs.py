"""Find, open and decompress corpus files of any supported format, on this disk or elsewhere."""

import bz2
import glob
import io
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from keras_bert_flow.files.outputs import is_output
from keras_bert_flow.files.paths import find_address

# Storage of corpus files: find and open them on local disks, or elsewhere through a storage that is passed in.


class Storage(Protocol):
    """A place that holds files. It is sent to workers, so it must be picklable."""

    def find(self, pattern: str, suffixes: tuple[str, ...]) -> list[str]:
        """Return the files that match a name or a glob; for a folder, those below it with one of the suffixes."""

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading its bytes as stored, with `readline` and `seek`.

        Raises:
            OSError: it does not exist, or may not be read.
        """

    def is_output(self, folder: str) -> bool:
        """Return whether a folder holds what this project made; see `files.outputs.is_output`."""

    def find_state(self, path: str) -> str | None:
        """Return what changes with the content of a remote file, such as its size and time; None if that is unknown."""
        return None

    def find_version(self, path: str) -> str | None:
        """Return the state of a remote file; None if it may change again without another one."""
        return None


class LocalStorage(Storage):
    """The local disks."""

    def find(self, pattern: str, suffixes: tuple[str, ...]) -> list[str]:
        if is_remote(pattern):
            raise ValueError(f"A path with :// needs Apache Beam's filesystems. Received: {pattern}. Copy it here.")
        if Path(pattern).is_dir():
            folders = os.walk(pattern, onerror=_refuse_folder)  # glob would skip what it may not list
            below = (Path(folder, name) for folder, _, names in folders for name in names if name.endswith(suffixes))
            return [str(path) for path in below if path.is_file()]
        names = [pattern] if Path(pattern).is_file() else glob.glob(pattern, recursive=True)  # a name may have brackets
        return [path for path in names if Path(path).is_file()]

    def open(self, path: str) -> BinaryIO:
        return open(path, "rb")

    def is_output(self, folder: str) -> bool:
        return is_output(Path(folder))


LOCAL = LocalStorage()


def _refuse_folder(error: OSError) -> None:
    raise ValueError(
        f"A folder of a corpus must be readable. Received: {error.filename}: {error.strerror}. Fix it or name others."
    )


def is_remote(path: str) -> bool:
    """Return whether a path is remote, such as gs:// or s3://; ValueError if it holds a password."""
    return "://" in path and find_address(path) is not None


# Decompress gzip, bzip2, xz and Zstandard streams while reading, and detect truncated files.
#
# The readers of the standard library end silently after a bzip2 or xz stream that is followed by damage, that of
# `zstandard` after a truncated one; a corpus that lost its second half this way would go unnoticed.

PACKED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
_PIECE_BYTES = 512  # expands to at most about 20 MB, even in a decompression bomb
_BUFFER_BYTES = 1 << 16
_XZ_BYTES = 256 << 20  # most memory of the decoder; `xz -9` takes 65 MB
_PADDED = (".gz", ".xz")  # zeros may be between or after streams


def unpack(packed: BinaryIO, suffix: str) -> BinaryIO:
    """Return a reader of the decompressed bytes of one or more concatenated streams; closing it closes `packed`.

    Args:
        packed: the file as stored.
        suffix: one of PACKED_SUFFIXES.
    Raises:
        EOFError, OSError, ValueError: on reading, if the file is truncated or damaged.
    """
    return io.BufferedReader(_Unpacking(packed, suffix), _BUFFER_BYTES)


class _Unpacking(io.RawIOBase):
    def __init__(self, packed: BinaryIO, suffix: str):
        super().__init__()
        self._packed, self._padded = packed, suffix in _PADDED
        self._start = _find_decoder(suffix)
        self._decoder = self._start()
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self._packed.close()
        super().close()

    def readinto(self, buffer) -> int:
        while not self._ready and (piece := self._next_piece()):
            try:
                self._ready = memoryview(self._decoder.decompress(piece))
            except Exception as error:  # each library has its own class
                raise ValueError(str(error)) from error
        taken = min(len(buffer), len(self._ready))
        buffer[:taken] = self._ready[:taken]
        self._ready = self._ready[taken:]
        return taken

    def _next_piece(self) -> bytes:
        """Return compressed bytes for the decoder, which is new after the end of a stream; none after the last one."""
        if not self._decoder.eof:
            piece = self._packed.read(_PIECE_BYTES)
            if not piece:
                raise EOFError("it ends too early")
            return piece
        piece = self._decoder.unused_data or self._packed.read(_PIECE_BYTES)
        while piece and self._padded and not (piece := piece.lstrip(b"\0")):
            piece = self._packed.read(_PIECE_BYTES)
        if piece:
            self._decoder = self._start()
        return piece


def _find_decoder(suffix: str) -> Callable[[], Any]:
    if suffix == ".gz":
        return lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    if suffix == ".bz2":
        return bz2.BZ2Decompressor
    if suffix == ".xz":
        return lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_BYTES)
    import zstandard  # comes with Apache Beam

    return lambda: zstandard.ZstdDecompressor().decompressobj()


PARQUET = ".parquet"  # compresses its columns itself
LINE_SUFFIXES = (".txt", ".jsonl")
DAMAGED_ERRORS = (EOFError, OSError, ValueError)  # when reading; pyarrow's are subclasses of OSError and ValueError
_GLOB = re.compile(r"[*?[]")
SUFFIXES = (*(line + packed for line in LINE_SUFFIXES for packed in ("", *PACKED_SUFFIXES)), PARQUET)


def find_inputs(patterns: Sequence[str], storage: Storage = LOCAL) -> list[str]:
    """Expand files, folders and globs into a sorted list of corpus files.

    What this project made is never text: results, models and work folders in a folder, or where a glob leads, are left
    out. A file or folder that is itself named is read, whatever it is.

    Raises:
        FileNotFoundError: a pattern matches nothing, or a folder contains no corpus file.
        ValueError: a file is of another kind, or its location cannot be reached.
    """
    paths = sorted({path for pattern in patterns for path in _expand(pattern, storage)[0]})
    found = sorted({_identity(path): path for path in paths}.values())  # each file once, however it was named
    for path in found:
        if not path.endswith(SUFFIXES):
            raise ValueError(
                f"A corpus file must end in one of {', '.join(SUFFIXES)}. Received: {path}. Rename or convert it."
            )
    return found


def find_left_out(patterns: Sequence[str], storage: Storage = LOCAL) -> list[str]:
    """Return the folders with results of this project that `find_inputs` leaves out."""
    return sorted({folder for pattern in patterns for folder in _expand(pattern, storage)[1]})


def find_ignored(patterns: Sequence[str], storage: Storage = LOCAL) -> list[str]:
    """Return the files in corpus folders that are not read because of their suffix, except hidden ones."""
    ignored = {
        path
        for pattern in patterns
        for path in {*_leave_out(pattern, storage.find(pattern, ("",)), storage)[0]}
        - {*storage.find(pattern, SUFFIXES)}
        if not any(part.startswith((".", "_")) for part in path.removeprefix(pattern).split("/"))
    }
    return sorted(ignored)


def check_inputs(patterns: Sequence[str], skip_bad_inputs: bool = False) -> list[str]:
    """Find corpus files as `find_inputs` does, and open each one unless bad inputs are skipped.

    Raises:
        FileNotFoundError, ValueError: as for `find_inputs` and `open_packed`.
    """
    paths = find_inputs(patterns)
    if not skip_bad_inputs:
        for path in paths:
            open_packed(path).close()
    return paths


def packages_for(paths: Sequence[str]) -> list[str]:
    """Return the packages needed to read corpus files, in addition to the standard library."""
    needed = {".zst": "zstandard", PARQUET: "pyarrow"}
    return sorted({package for ending, package in needed.items() if any(path.endswith(ending) for path in paths)})


def open_input(path: str, storage: Storage = LOCAL) -> BinaryIO:
    """Open a corpus file for reading decompressed bytes.

    Raises:
        ValueError: it cannot be opened; the message is one line that names it.
    """
    file = open_packed(path, storage)
    suffix = os.path.splitext(path)[1]
    return unpack(file, suffix) if suffix in PACKED_SUFFIXES else file


def open_packed(path: str, storage: Storage = LOCAL) -> BinaryIO:
    """Open a corpus file for reading bytes as stored; raises as `open_input` does."""
    try:
        return storage.open(path)
    except OSError as error:
        raise ValueError(
            f"A corpus file must exist and be readable. Received: {path}: {error.strerror or error}. "
            "Fix it, or leave it out by --skip-bad-inputs."
        ) from None


@contextmanager
def whole_file(path: str) -> Iterator[None]:
    """Convert errors while reading an open file into one-line errors that name it."""
    try:
        yield
    except DAMAGED_ERRORS as error:
        raise describe_damage(path, error) from error


def describe_damage(path: str, error: Exception) -> ValueError:
    """Return a one-line error that names a file that cannot be read to its end."""
    reason = " ".join(str(error).split()).rstrip(".")
    return ValueError(
        f"A corpus file must be whole. Received: {path}, damaged: {reason}. Restore the file, or leave it out by "
        "--skip-bad-inputs."
    )


def input_format(path: str) -> str:
    """Return the suffix of a file that determines how its bytes are read, such as `.jsonl.gz`, JSON in each line."""
    return next(suffix for suffix in sorted(SUFFIXES, key=len, reverse=True) if path.endswith(suffix))


def _expand(pattern: str, storage: Storage) -> tuple[list[str], list[str]]:
    """Return the files of a pattern, and the folders with results that are left out."""
    matches, left_out = _leave_out(pattern, storage.find(pattern, SUFFIXES) if pattern else [], storage)
    if not matches:
        only = f", which has only results of this program: {left_out[0]}" if left_out else ""
        raise FileNotFoundError(
            f"An input must be a file, a folder or a glob that matches. Received: {pattern or repr(pattern)}{only}. "
            "Check the path."
        )
    return matches, left_out


def _leave_out(pattern: str, paths: Sequence[str], storage: Storage) -> tuple[list[str], list[str]]:
    """Return the files that lie in no output below the fixed part of a pattern, and the outputs of the others."""
    if not paths or pattern in paths:  # a file that is named itself
        return list(paths), []
    fixed = _GLOB.split(pattern, maxsplit=1)
    start = _identity(fixed[0].rstrip("/") if len(fixed) == 1 else os.path.dirname(fixed[0]) or ".")
    outputs: dict[str, str | None] = {}  # folder → the output that it is or lies in

    def find_output(folder: str) -> str | None:
        if folder not in outputs:
            above = os.path.dirname(folder)
            if above == folder or start == folder or start.startswith(os.path.join(folder, "")):
                outputs[folder] = None
            else:
                outputs[folder] = find_output(above) or (folder if storage.is_output(folder) else None)
        return outputs[folder]

    kept = [path for path in paths if find_output(os.path.dirname(_identity(path))) is None]
    return kept, sorted({*filter(None, outputs.values())})


def _identity(path: str) -> str:
    return path if is_remote(path) else os.path.realpath(path)
