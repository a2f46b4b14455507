"""Find the files of a corpus and open them, whatever their packing."""

import glob
import gzip
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

SUFFIXES = (".txt", ".jsonl", ".txt.gz", ".jsonl.gz")


def find_inputs(patterns: Sequence[str]) -> list[str]:
    """Expand files, folders and globs into a sorted list of corpus files.

    Raises:
        FileNotFoundError: a pattern matches nothing, or a folder holds no corpus file.
        ValueError: a file is of another kind.
    """
    paths = sorted({path for pattern in patterns for path in _expand(pattern)})
    found = sorted({os.path.realpath(path): path for path in paths}.values())  # each file once, however it was named
    for path in found:
        if not path.endswith(SUFFIXES):
            raise ValueError(
                f"A corpus file must end in one of {', '.join(SUFFIXES)}. Received: {path}. Rename or convert it."
            )
    return found


def open_input(path: str) -> BinaryIO:
    """Open a corpus file for reading lines of bytes, unpacked."""
    return gzip.open(path, "rb") if path.endswith(".gz") else open(path, "rb")


def is_jsonl(path: str) -> bool:
    """Tell whether each line of a corpus file is a document in JSON."""
    return path.removesuffix(".gz").endswith(".jsonl")


def _expand(pattern: str) -> Iterable[str]:
    if Path(pattern).is_dir():
        matches = [str(path) for path in Path(pattern).rglob("*") if path.is_file() and path.name.endswith(SUFFIXES)]
    else:
        names = [pattern] if Path(pattern).is_file() else glob.glob(pattern, recursive=True)  # a name may hold brackets
        matches = [path for path in names if Path(path).is_file()]
    if not matches:
        raise FileNotFoundError(
            f"An input must be a file, a folder or a glob that matches. Received: {pattern}. Check the path."
        )
    return matches
