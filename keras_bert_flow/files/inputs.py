"""States of input files, held from their digest on, also of files that are still being downloaded.

A content key holds digests of files that are read again later, some of them hours later. A state is what the system
keeps about a file: device, inode, size, and the times of the last change. Any change of a file moves the time of its
last status change, which no program can set back, so a change that has been undone shows as well.
"""

import os
import stat
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from keras_bert_flow.files.outputs import walk_input

# Registry of files that are still being downloaded to this disk, and of their carriers.
#
# A reader that finds a carrier for a file need not wait: it reads the bytes it needs from the file's source.


class Carrier(Protocol):
    """Downloads files to this disk, and checks each against its digest before giving it its final name."""

    def digest(self, path: Path) -> str:
        """Return the sha256 of a file, or "" if it is not known before the file has arrived."""

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


@dataclass(frozen=True)
class ArrivingBytes:
    """Sliceable bytes of a file that is still being downloaded."""

    path: Path
    size: int
    carrier: Carrier

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: slice) -> bytes:
        return self.carrier.read(self.path, place.start, place.stop)


States = Mapping[str, tuple | str | None]  # place → what is known about it; None: not compared
_FINE_SECONDS, _COARSE_SECONDS = 0.02, 2.0  # resolution of time stamps: several ticks of Linux; FAT's
_LINK, _FOLDER, _FILE = "link", "folder", "file"
_REMOTE_AT_ONCE = 8


@dataclass(frozen=True)
class InputStates:
    """States of the inputs of a result; see `hold`. Those of several are joined by `|`.

    Attributes:
        held: pairs of a function that looks at inputs, and what it found.
    """

    held: tuple[tuple[Callable[[], States], States], ...] = ()

    def __or__(self, others: "InputStates") -> "InputStates":
        return InputStates(self.held + others.held)

    def check(self) -> None:
        """Raise ValueError if an input has changed since it was held.

        To be called after the last read, before anything made of the inputs is kept: a result, or a checkpoint. A file
        with the same bytes and another state is refused too, since other bytes may have been read in between.
        """
        for look, before in self.held:
            now = look()
            folders = {place for place, state in before.items() if state and state[0] == _FOLDER}
            for place in sorted({*before, *now}, key=lambda place: (place in folders, place)):
                if change := _describe_change(before.get(place, ()), now.get(place, ())):
                    raise ValueError(
                        f"An input must not change while a result is made from it. Received: {place}, {change} since "
                        "it was first read. Run again once it stays as it is."
                    )


NOTHING_HELD = InputStates()


def hold(*paths: str | Path) -> InputStates:
    """Return the states of local files and folders; to be called before they are first read or digested.

    Of a folder, everything that `files.outputs.walk_input` yields counts, except files that are still being downloaded,
    which are checked when they arrive. Symbolic links count beside what they lead to. A folder that was moved away and
    back has another state than before; one whose files are the same, and that got others, has not.

    A pipe or a device has no state: it can only be read once.
    """
    inputs = InputStates(tuple((look := partial(_look, Path(path)), look()) for path in paths))
    # A further change of a file that has just been written must get another time.
    found = [state for _, states in inputs.held for state in states.values()]
    newest = max((state[4] for state in found if isinstance(state, tuple) and state), default=0)
    resolution = _FINE_SECONDS if newest % 1_000_000_000 else _COARSE_SECONDS
    time.sleep(min(resolution, max(0.0, newest / 1e9 + resolution - time.time())))
    return inputs


def hold_remote(paths: Iterable[str], find_state: Callable[[str], str | None]) -> InputStates:
    """Return the states of remote files.

    Args:
        find_state: returns what changes with the content of a file, such as its size and time.
    """
    paths = tuple(paths)

    def look() -> States:
        with ThreadPoolExecutor(_REMOTE_AT_ONCE) as pool:
            return dict(zip(paths, pool.map(find_state, paths), strict=True))

    return InputStates(((look, look()),))


def _look(path: Path) -> States:
    found: dict[str, tuple | str | None] = {}
    _add_links(path.absolute(), found)
    if not path.is_dir():
        found[str(path.parent)] = _read_state(path.parent)
        found[str(path)] = _read_state(path)
        return found
    arriving = {str(path / name): None for name in list_digests(path)}
    for place in walk_input(path):
        if place.is_symlink():
            _add_links(place.absolute(), found)
        found[str(place)] = _read_state(place)
    return found | arriving


def _add_links(path: Path, found: dict[str, tuple | str | None]) -> None:
    """Add the state of each symbolic link on the way to a path."""
    for place in (*reversed(path.parents), path):
        if (name := f"{place}, a link") not in found and place.is_symlink():
            found[name] = (_LINK, *_read_times(place.lstat()))
            _add_links(place.parent / os.readlink(place), found)


def _read_state(path: Path) -> tuple | None:
    """Return the state of a file or folder; None if it is still being downloaded, or is a pipe or a device."""
    if find_carrier(path) is not None:
        return None
    try:
        status = path.stat()
    except OSError:
        return ()
    if stat.S_ISDIR(status.st_mode):
        return (_FOLDER, *_read_times(status))
    return (_FILE, *_read_times(status), status.st_size) if stat.S_ISREG(status.st_mode) else None


def _read_times(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns


def _describe_change(before: tuple | str | None, now: tuple | str | None) -> str | None:
    """Describe how a place has changed; None if it has not, or may not be compared."""
    if before is None or now is None or before == now:
        return None
    if not before:
        return None if now[:1] == (_FOLDER,) else "new"
    if not now:
        return "gone"
    if before[0] == now[0] == _FOLDER and before[1:3] == now[1:3]:
        # New and removed files move both times; a rename of the folder itself moves only the second.
        return "moved" if before[3] == now[3] and before[4] != now[4] else None
    return "changed"
