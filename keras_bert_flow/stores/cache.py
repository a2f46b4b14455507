"""Local cache of remote folders: downloads in the background, checked by digest; the least recently used go first.

Processes share the cache: a process that uses a folder holds a lock on it, which the system releases when the process
dies.
"""

import fcntl
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import IO

from keras_bert_flow.files.inputs import arrive, expect
from keras_bert_flow.files.paths import refuse_link
from keras_bert_flow.results.artifacts import locked, remember_digest
from keras_bert_flow.results.manifest import FileSummary
from keras_bert_flow.stores.store import Store

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


# Download the files of a folder in the background; each gets its name once its digest has been checked.

STREAMS = 4  # concurrent downloads: one connection does not saturate a network
CHUNK_BYTES = 8 << 20
_logger = logging.getLogger(__name__)
PART_SUFFIX = ".part"  # of an incomplete file, which a later process resumes


class Download:
    """Background download of files from a store; an `files.inputs.Carrier`.

    Args:
        store: the remote folder.
        folder: the local folder, in which the files have the same names.
        files: the files to download; digests are checked for files that have one.
    """

    def __init__(self, store: Store, folder: Path, files: Sequence[FileSummary]):
        self._store, self._folder = store, folder
        self._files = {folder / file.name: file for file in files}
        self._coming: dict[Path, Future] = {path: Future() for path in self._files}
        self._next = iter(self._files)
        self._has_told = False
        self._taking, self._stopped = threading.Lock(), threading.Event()
        # Daemons, which end with the process at any point: incomplete files are resumed later.
        self._threads = [threading.Thread(target=self._bring_all, daemon=True) for _ in range(STREAMS)]

    def start(self) -> None:
        """Start; from now on readers of the files find this carrier."""
        for path in self._files:
            expect(path, self)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop; downloaded files are complete, and the others can be resumed."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        for path, coming in self._coming.items():
            if coming.cancel():  # it has not arrived
                arrive(path)

    def digest(self, path: Path) -> str:
        return self._files[path].sha256

    def is_bringing(self, path: Path) -> bool:
        return not self._coming[path].done()

    def wait(self, path: Path) -> None:
        self._coming[path].result()

    def read(self, path: Path, start: int, end: int) -> bytes:
        coming = self._coming[path]
        if not coming.done():
            return self._store.read(self._files[path].name, start, end)
        coming.result()  # raises the error of the download, if any
        with open(path, "rb") as file:
            return os.pread(file.fileno(), end - start, start)

    def _bring_all(self) -> None:
        while not self._stopped.is_set():
            with self._taking:
                path = next(self._next, None)
            if path is None:
                return
            try:
                if self._bring(path):
                    self._coming[path].set_result(None)
            except Exception as error:  # re-raised to whoever waits for the file or reads it
                self._coming[path].set_exception(error)

    def _bring(self, path: Path) -> bool:
        """Download a file unless another process did, resuming a partial one; return whether it has arrived."""
        file, part = self._files[path], path.with_name(f".{path.name}{PART_SUFFIX}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock"), tell=self._tell):
            if not is_here(path, file):
                self._fetch(file, part)
                if self._stopped.is_set():
                    return False
                os.replace(part, path)
        if file.sha256:
            remember_digest(path, file.sha256)
        arrive(path)
        return True

    def _tell(self, line: str) -> None:
        """Say once, not for each file, that another process is downloading the same folder."""
        with self._taking:
            is_first, self._has_told = not self._has_told, True
        if is_first:
            _logger.warning("%s It is downloading %s.", line, self._store.address)

    def _fetch(self, file: FileSummary, part: Path) -> None:
        """Download the rest of a file, or all of it again if the resumed file has the wrong digest."""
        for is_last in (not part.exists(), True):
            with open(part, "ab") as target:
                while (start := target.tell()) < file.file_bytes and not self._stopped.is_set():
                    target.write(self._store.read(file.name, start, min(start + CHUNK_BYTES, file.file_bytes)))
                target.flush()
                os.fsync(target.fileno())
            if self._stopped.is_set():
                return
            with open(part, "rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            if part.stat().st_size == file.file_bytes and digest == (file.sha256 or digest):
                return
            with suppress(FileNotFoundError):
                part.unlink()
            if is_last:
                break
        raise ValueError(
            f"A file must be as its manifest says. Received: {self._store.address}/{file.name}, changed or damaged. "
            "Build the folder again, or copy it again from where it is whole."
        )


def is_here(path: Path, file: FileSummary) -> bool:
    """Return whether a file has been downloaded: it has its size, and its digest was checked at that time."""
    return path.is_file() and path.stat().st_size == file.file_bytes
