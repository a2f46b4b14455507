"""Find and open corpus files, of any supported format and compression."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

from keras_bert_flow.text.corpus.storage import LOCAL, Storage, is_remote
from keras_bert_flow.text.corpus.unpacking import PACKED_SUFFIXES, unpack

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


def check_inputs(patterns: Sequence[str], storage: Storage = LOCAL, skip_bad_inputs: bool = False) -> list[str]:
    """Find corpus files as `find_inputs` does, and open each one unless bad inputs are skipped.

    Raises:
        FileNotFoundError, ValueError: as for `find_inputs` and `open_packed`.
    """
    paths = find_inputs(patterns, storage)
    if not skip_bad_inputs:
        for path in paths:
            open_packed(path, storage).close()
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
    """Return the suffix of a file that determines how its bytes are read, such as `.jsonl.gz`."""
    return next(suffix for suffix in sorted(SUFFIXES, key=len, reverse=True) if path.endswith(suffix))


def is_jsonl(path: str) -> bool:
    """Return whether each line of a corpus file is a document in JSON."""
    return input_format(path).startswith(".jsonl")


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
