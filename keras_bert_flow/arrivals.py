"""Know which files are still on their way to this disk, and who brings them.

A reader that finds a carrier for a file need not wait: it reads a part of the file where it comes from.
"""

import os
from pathlib import Path
from typing import Protocol


class Carrier(Protocol):
    """Who brings files to this disk, and compares each with its digest before it has its name."""

    def digest(self, path: Path) -> str:
        """Return the sha256 of a file, "" where it is not known before the file is here."""

    def is_bringing(self, path: Path) -> bool:
        """Tell whether a file may still come; if not, it is here, or `wait` says why it is not."""

    def wait(self, path: Path) -> None:
        """Return when a file is here.

        Raises:
            OSError, ValueError: it cannot be brought, or is not as its manifest says.
        """

    def read(self, path: Path, start: int, end: int) -> bytes:
        """Return some bytes of a file, from where it comes from while it is not here.

        Raises:
            OSError, ValueError: as of `wait`.
        """


_carriers: dict[str, Carrier] = {}


def expect(path: Path, carrier: Carrier) -> None:
    """Say that a file is on its way."""
    _carriers[os.path.abspath(path)] = carrier


def arrive(path: Path) -> None:
    """Say that a file is here."""
    _carriers.pop(os.path.abspath(path), None)


def find_carrier(path: str | Path) -> Carrier | None:
    """Return who brings a file; None of one that is here, or that nobody brings."""
    return _carriers.get(os.path.abspath(path)) if _carriers else None


def list_digests(folder: str | Path) -> dict[Path, str]:
    """Return the sha256 of each file below a folder that is not here, by its path from there."""
    prefix = os.path.join(os.path.abspath(folder), "")
    found = {Path(path): carrier for path, carrier in _carriers.items() if path.startswith(prefix)}
    return {path.relative_to(prefix): carrier.digest(path) for path, carrier in found.items()}


class ArrivingBytes:
    """The bytes of a file that is on its way, by slices."""

    def __init__(self, path: Path, size: int, carrier: Carrier):
        self._path, self._size, self._carrier = path, size, carrier

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, place: slice) -> bytes:
        return self._carrier.read(self._path, place.start, place.stop)
