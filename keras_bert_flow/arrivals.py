"""Registry of files that are still being downloaded to this disk, and of their carriers.

A reader that finds a carrier for a file need not wait: it reads the bytes it needs from the file's source.
"""

import os
from pathlib import Path
from typing import Protocol


class Carrier(Protocol):
    """Downloads files to this disk, and checks each against its digest before giving it its final name."""

    def digest(self, path: Path) -> str:
        """Return the sha256 of a file, or "" if it is not known before the file has arrived."""

    def is_bringing(self, path: Path) -> bool:
        """Return whether a file may still arrive; if not, it has arrived, or `wait` raises the reason."""

    def wait(self, path: Path) -> None:
        """Block until a file has arrived.

        Raises:
            OSError, ValueError: it cannot be downloaded, or differs from its manifest.
        """

    def read(self, path: Path, start: int, end: int) -> bytes:
        """Return a byte range of a file, read from its source while the file has not arrived.

        Raises:
            OSError, ValueError: as for `wait`.
        """


_carriers: dict[str, Carrier] = {}


def expect(path: Path, carrier: Carrier) -> None:
    """Register a file as being downloaded."""
    _carriers[os.path.abspath(path)] = carrier


def arrive(path: Path) -> None:
    """Register that a file has arrived."""
    _carriers.pop(os.path.abspath(path), None)


def find_carrier(path: str | Path) -> Carrier | None:
    """Return the carrier of a file; None if it has arrived or has no carrier."""
    return _carriers.get(os.path.abspath(path)) if _carriers else None


def list_digests(folder: str | Path) -> dict[Path, str]:
    """Return the sha256 of each file below a folder that has not arrived, by path relative to the folder."""
    prefix = os.path.join(os.path.abspath(folder), "")
    found = {Path(path): carrier for path, carrier in _carriers.items() if path.startswith(prefix)}
    return {path.relative_to(prefix): carrier.digest(path) for path, carrier in found.items()}


class ArrivingBytes:
    """Sliceable bytes of a file that is still being downloaded."""

    def __init__(self, path: Path, size: int, carrier: Carrier):
        self._path, self._size, self._carrier = path, size, carrier

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: slice) -> bytes:
        return self._carrier.read(self._path, place.start, place.stop)
