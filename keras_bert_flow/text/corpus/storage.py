"""Storage of corpus files: find and open them on local disks, or elsewhere through a storage that is passed in."""

import glob
import os
from pathlib import Path
from typing import BinaryIO, Protocol

from keras_bert_flow.local_paths import find_address
from keras_bert_flow.outputs import is_output


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
        """Return whether a folder holds what this project made; see `outputs.is_output`."""

    def find_state(self, path: str) -> str | None:
        """Return what changes with the content of a remote file, such as its size and time; None if that is unknown."""

    def find_version(self, path: str) -> str | None:
        """Return the state of a remote file; None if it may change again without another one."""


class LocalStorage:
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

    def find_state(self, path: str) -> str | None:
        return None

    def find_version(self, path: str) -> str | None:
        return None


LOCAL = LocalStorage()


def _refuse_folder(error: OSError) -> None:
    raise ValueError(
        f"A folder of a corpus must be readable. Received: {error.filename}: {error.strerror}. Fix it or name others."
    )


def is_remote(path: str) -> bool:
    """Return whether a path is remote, such as gs:// or s3://; ValueError if it holds a password."""
    return "://" in path and find_address(path) is not None
