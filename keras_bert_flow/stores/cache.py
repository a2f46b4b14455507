"""Local cache of remote folders, limited in size; only folders that no process uses are evicted, LRU first.

Processes share the cache: a process that uses a folder holds a lock on it, which the system releases when the process
dies.
"""

import fcntl
import os
import shutil
import time
from pathlib import Path
from typing import IO

from keras_bert_flow.shared_folders import refuse_link

CACHE, LIMIT = "KBF_CACHE", "KBF_CACHE_GB"  # environment variables
DEFAULT_LIMIT_GB = 100
GB = 10**9
_IN_USE = ".in-use"  # file in a folder: its users hold a lock on it, and its mtime is the time of last use
_held: dict[Path, IO] = {}  # folder → its open lock file, while this process lasts


def cache_root() -> Path:
    """Return the cache directory of this project: `$KBF_CACHE`, or a folder in the user's cache directory."""
    if given := os.environ.get(CACHE):
        return Path(os.path.realpath(given))
    try:
        caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:  # no HOME, and the system does not know the user
        raise ValueError(
            f"What is fetched needs a folder to be kept in. Received: neither HOME nor {CACHE}. Set {CACHE} to one."
        ) from None
    return Path(os.path.realpath(caches)) / "keras_bert_flow"


def fetched_root() -> Path:
    """Return the directory of fetched folders, which is limited in size."""
    return cache_root() / "fetched"


def outputs_root() -> Path:
    """Return the directory in which results for remote places are built, which stay until they are uploaded."""
    return cache_root() / "outputs"


def cache_limit() -> int:
    """Return the maximum size of the cache in bytes, from `$KBF_CACHE_GB` in GB, by default 100.

    Raises:
        ValueError: it is not a positive number.
    """
    given = os.environ.get(LIMIT, str(DEFAULT_LIMIT_GB))
    try:
        limit = int(float(given) * GB)
    except (ValueError, OverflowError):
        limit = 0
    if limit <= 0:
        raise ValueError(
            f"{LIMIT} must be a positive number of gigabytes. Received: {ascii(given)}. Set it or unset it."
        )
    return limit


def enter(folder: Path) -> None:
    """Create a cache folder if it does not exist, and hold it until `leave` or the end of this process."""
    while folder not in _held or not _is_there(_held[folder], folder / _IN_USE):
        leave(folder)
        refuse_link(folder)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _held[folder] = open(folder / _IN_USE, "ab")  # noqa: SIM115 held until the process ends
        except FileNotFoundError:  # just removed by another process
            continue
        fcntl.flock(_held[folder], fcntl.LOCK_SH)  # waits for a process that is removing it
    os.utime(folder / _IN_USE)


def leave(*folders: Path) -> None:
    """Release folders: they may be evicted when space is needed."""
    for folder in folders:
        if file := _held.pop(folder, None):
            file.close()


def leave_all() -> None:
    """Release every folder that this process holds."""
    leave(*_held)


def make_room(root: Path, needed: int, what: str) -> None:
    """Evict the least recently used folders that are not in use until `needed` more bytes fit.

    Raises:
        OSError: they do not fit; the message says why.
    """
    limit = cache_limit()
    if not needed:  # everything is cached already, whatever the limit is now
        return
    root.mkdir(parents=True, exist_ok=True)
    sizes = {folder: _count_bytes(folder) for folder in root.iterdir() if folder.is_dir()}
    excess = max(sum(sizes.values()) + needed - limit, needed - shutil.disk_usage(root).free)
    for folder in sorted(sizes, key=_last_used):
        if excess <= 0:
            return
        if folder not in _held and _remove_unused(folder):
            excess -= sizes[folder]
    if excess > 0:
        raise OSError(
            f"What is fetched must fit in the cache of {limit / GB:g} GB and on its disk. Received: {what}, "
            f"{needed / GB:.3g} GB, {excess / GB:.3g} too many beside what is in use in {root}. "
            f"Raise {LIMIT}, or set {CACHE} to a folder with more room."
        )


def _count_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except FileNotFoundError:  # another process is downloading or removing it
            continue
    return total


def _last_used(folder: Path) -> float:
    try:
        return (folder / _IN_USE).stat().st_mtime
    except FileNotFoundError:
        return time.time()


def _remove_unused(folder: Path) -> bool:
    """Remove a folder unless a process uses it; return whether it is gone."""
    try:
        file = open(folder / _IN_USE, "rb")  # noqa: SIM115 closed below
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        (folder / _IN_USE).unlink(missing_ok=True)  # first: a process that waits for the lock then sees that it is gone
        shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _is_there(file: IO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
