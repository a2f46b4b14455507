"""Find and open the files of a corpus; this machine's disk here, other places through a storage that is passed in."""

import glob
import os
from pathlib import Path
from typing import BinaryIO, Protocol


class Storage(Protocol):
    """A place that holds files. It is sent to workers, so it can be pickled."""

    def find(self, pattern: str, suffixes: tuple[str, ...]) -> list[str]:
        """Return the files that a name or a glob stands for; of a folder, those below it with one of the suffixes."""

    def open(self, path: str) -> BinaryIO:
        """Open a file for reading its bytes as they lie there, with `readline` and `seek`.

        Raises:
            OSError: it is not there, or may not be read.
        """


class LocalStorage:
    """The disks of this machine."""

    def find(self, pattern: str, suffixes: tuple[str, ...]) -> list[str]:
        if is_remote(pattern):
            raise ValueError(f"A path with :// needs Apache Beam's filesystems. Received: {pattern}. Copy it here.")
        if Path(pattern).is_dir():
            folders = os.walk(pattern, onerror=_refuse_folder)  # glob would leave out what it may not list
            below = (Path(folder, name) for folder, _, names in folders for name in names if name.endswith(suffixes))
            return [str(path) for path in below if path.is_file()]
        names = [pattern] if Path(pattern).is_file() else glob.glob(pattern, recursive=True)  # a name may hold brackets
        return [path for path in names if Path(path).is_file()]

    def open(self, path: str) -> BinaryIO:
        return open(path, "rb")


LOCAL = LocalStorage()


def _refuse_folder(error: OSError) -> None:
    raise ValueError(
        f"A folder of a corpus must be readable. Received: {error.filename}: {error.strerror}. Mend it or name others."
    )


def is_remote(path: str) -> bool:
    """Tell whether a path names another place, such as gs:// or s3://."""
    return "://" in path
