"""Fetch remote folders to local paths through a verified cache: each is downloaded once, in the background.

Every file is checked by the digest in its manifest. Of the cached folders, the least recently used go first. Processes
share the cache: a process that uses a folder holds a lock on it, which the system releases when the process dies.
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
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, NoReturn

from keras_bert_flow.files.inputs import arrive, expect, find_carrier
from keras_bert_flow.files.outputs import is_result
from keras_bert_flow.files.paths import find_address, refuse_link
from keras_bert_flow.records.tfrecord import RECORD_SUFFIX
from keras_bert_flow.results.artifacts import is_same_file, locked, remember_digest, write_atomically
from keras_bert_flow.results.manifest import MANIFEST, FileSummary, is_published, read_manifest
from keras_bert_flow.stores.hub import fetch_from_hub, is_of_hub
from keras_bert_flow.stores.store import Store

KEY_LENGTH = 16
FOLDERS_ABOVE = 3  # parents searched for a manifest: `pretrained/seed-1/model` in a result of `kbf finetune`
CONTENT = "content"  # subfolder of a cache folder with the fetched files and nothing else
SOURCE = "source"  # file next to it with the address, for people who look into the cache
_downloads: list["Download"] = []  # of this process

_logger = logging.getLogger(__name__)


def fetch(path: str | Path, wait: bool = True) -> Path:
    """Download a remote folder and return its local path; a local path is returned unchanged.

    A folder with a manifest, or a subfolder of one, is compared with the manifest. It is cached under the digest of the
    manifest, so it is downloaded once, and a later process resumes what a killed one left. From a folder without a
    manifest of ours, all files that are not hidden are fetched.

    Args:
        path: a folder, or a file of one; for a file, the other files of its folder are fetched too, except records.
        wait: return when everything has arrived. If False, record files may still be downloading; see
            `files.inputs.expect`.
    Raises:
        FileNotFoundError: nothing is there.
        OSError: the place cannot be reached, or its content does not fit in the cache.
        ValueError: a file differs from its manifest, or no package for such addresses is installed.
    """
    address = find_address(path)
    if address is None:
        return Path(path)
    if is_of_hub(address):
        return fetch_from_hub(address)
    found = find_published(address)
    if found is None:
        return _fetch_unlisted(Store(address), address)
    store, prefix, folder, files = found
    below = [file for file in files if PurePosixPath(file.name).is_relative_to(prefix)]
    is_file = any(file.name == str(prefix) for file in files)
    if is_file:
        below = [file for file in files if RECORD_SUFFIX not in file.name]
    if not below:
        raise FileNotFoundError(f"A path must exist. Received: {address}, which {MANIFEST} does not list. Check it.")
    _bring(store, folder, below, wait)
    return folder / prefix


def stop_downloads() -> None:
    """Stop the downloads of this process, and release the cache folders; a later process resumes them."""
    while _downloads:
        _downloads.pop().stop()
    leave(*_held)


def find_published(address: str) -> tuple[Store, PurePosixPath, Path, tuple[FileSummary, ...]] | None:
    """Find the published folder that an address names or lies in, and fetch its manifest.

    Returns:
        Its store, the path of the address in it, its cache folder, which then has the manifest, and the files in the
        manifest; None if there is no manifest.
    Raises:
        OSError: the place cannot be reached.
        ValueError: the manifest is damaged.
    """
    scheme, _, place = address.partition("://")
    parts = [part for part in place.split("/") if part]
    for above in range(min(FOLDERS_ABOVE, len(parts) - 1) + 1):
        store = Store(f"{scheme}://{'/'.join(parts[: len(parts) - above])}")
        try:
            content = store.read(MANIFEST)
        except (FileNotFoundError, PermissionError):  # some stores raise the latter for missing files
            continue
        folder = _enter_content(store.address, content)
        path = folder / MANIFEST
        if not path.is_file() or path.read_bytes() != content:  # others may be reading the folder: `InputStates`
            write_atomically(path, content)
        if is_result(folder):
            try:
                files = read_manifest(folder).files
            except ValueError:
                path.unlink()
                raise ValueError(
                    f"A manifest must be whole. Received: {store.address}/{MANIFEST}, damaged. Build the folder again."
                ) from None
            return store, PurePosixPath(*parts[len(parts) - above :]), folder, files
        leave(folder.parent)
    return None


def _fetch_unlisted(store: Store, address: str) -> Path:
    """Fetch a folder without a manifest, or a file of one."""
    listed = store.list()
    if "" in listed:  # a file
        parent, _, name = address.rpartition("/")
        store, listed, place = Store(parent), {name: listed[""]}, name
    else:
        is_hidden = {name: any(part.startswith(".") for part in PurePosixPath(name).parts) for name in listed}
        listed, place = {name: facts for name, facts in listed.items() if not is_hidden[name]}, ""
    folder = _enter_content(store.address, repr(sorted(listed.items())).encode())
    _bring(store, folder, [FileSummary(name, size, "") for name, (size, _) in sorted(listed.items())], wait=True)
    return folder / place


def _enter_content(address: str, content: bytes) -> Path:
    """Create the cache folder for the content of an address."""
    key = hashlib.sha256(address.encode() + b"\0" + content).hexdigest()[:KEY_LENGTH]
    place = cache_root() / FETCHED / key
    enter(place)
    write_atomically(place / SOURCE, f"{address}\n".encode())
    (place / CONTENT).mkdir(exist_ok=True)
    return place / CONTENT


def _bring(store: Store, folder: Path, files: Sequence[FileSummary], wait: bool) -> None:
    """Start downloading files that are not under way, and wait for all, or for all but records."""
    missing = [file for file in files if not is_here(folder / file.name, file)]
    make_room(cache_root() / FETCHED, sum(file.file_bytes for file in missing), store.address)
    # The files that describe the records first, then the held-out records, of which there are few.
    files = sorted(files, key=lambda file: (RECORD_SUFFIX in file.name, not file.name.startswith("held_out")))
    carriers = {file: find_carrier(folder / file.name) for file in files}
    coming = {
        file
        for file, found in carriers.items()
        if isinstance(found, Download) and found.is_bringing(folder / file.name)
    }
    download = Download(store, folder, [file for file in files if file not in coming])
    _downloads.append(download)
    download.start()
    for path in (folder / file.name for file in files if wait or not file.name.endswith(RECORD_SUFFIX)):
        if (carrier := find_carrier(path)) is not None:
            carrier.wait(path)


def is_here(path: Path, file: FileSummary) -> bool:
    """Return whether a file has been downloaded: it has its size, and its digest was checked at that time."""
    return path.is_file() and path.stat().st_size == file.file_bytes


# Read only the manifests of published folders, not the data: for the digests of inputs and for finished results.


def fetch_manifest(path: str | Path) -> Path:
    """Return a local stand-in with the digest of a published folder, or of a subfolder of one.

    A local path is returned unchanged. For a remote folder, only the manifest is fetched, and its files are known by
    their digests: `results.stages.keys` makes keys from them, but nothing can read them. A folder without a manifest
    of ours is fetched as a whole.

    Raises:
        FileNotFoundError, OSError, ValueError: as for `fetching.fetch`.
    """
    address = find_address(path)
    if address is None:
        return Path(path)
    found = None if is_of_hub(address) else find_published(address)
    if found is None:
        return fetch(address)
    store, prefix, folder, files = found
    for file in files:
        place = folder / file.name
        if PurePosixPath(file.name).is_relative_to(prefix) and not is_here(place, file) and not find_carrier(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            expect(place, Listed(store.address, file))
    return folder / prefix


def is_finished(path: str | Path, key: str) -> bool:
    """Return whether a folder holds the finished result of a key.

    Local files are compared with the digests in the manifest. Remote ones are compared by size; their digests are
    checked when they are fetched.

    Raises:
        OSError: the place cannot be reached.
    """
    address = find_address(path)
    if address is None:
        return is_published(path, key)
    try:
        sizes = {name: size for name, (size, _) in Store(address).list().items()}
        found = find_published(address) if MANIFEST in sizes else None
        if found is None:
            return False
        manifest = read_manifest(found[2])
    except (FileNotFoundError, ValueError):
        return False
    return manifest.key == key and all(sizes.get(file.name) == file.file_bytes for file in manifest.files)


@dataclass(frozen=True)
class Listed:
    """A file in a manifest that is not downloaded: only its digest is known; an `files.inputs.Carrier`."""

    address: str
    file: FileSummary

    def digest(self, path: Path) -> str:
        return self.file.sha256

    def wait(self, path: Path) -> NoReturn:
        raise FileNotFoundError(
            f"A file must be fetched before it is read. Received: {self.address}/{self.file.name}. Fetch its folder."
        )

    def read(self, path: Path, start: int, end: int) -> bytes:
        self.wait(path)


# Download the files of a folder in the background; each gets its name once its digest has been checked.

STREAMS = 4  # concurrent downloads: one connection does not saturate a network
CHUNK_BYTES = 8 << 20
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
        """Return whether a file may still arrive; if not, it has arrived, or `wait` raises the reason."""
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


# The folder of the cache, its limit, and who uses what is in it.

CACHE, LIMIT = "KBF_CACHE", "KBF_CACHE_GB"  # environment variables
DEFAULT_LIMIT_GB = 100
GB = 10**9
FETCHED = "fetched"  # in the cache: fetched folders, which are limited in size
OUTPUTS = "outputs"  # in the cache: results for remote places in the making, which stay until they are uploaded
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
    while folder not in _held or not is_same_file(_held[folder], folder / _IN_USE):
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


def make_room(root: Path, needed: int, what: str) -> None:
    """Evict the least recently used folders that are not in use until `needed` more bytes fit.

    Raises:
        OSError: they do not fit; the message says why.
    """
    limit = cache_limit()
    if not needed:  # everything is cached already, whatever the limit is now
        return
    root.mkdir(parents=True, exist_ok=True)
    found = [(*_measure(folder), folder) for folder in root.iterdir() if folder.is_dir()]
    excess = max(sum(size for _, size, _ in found) + needed - limit, needed - shutil.disk_usage(root).free)
    for _, size, folder in sorted(found):
        if excess <= 0:
            return
        if folder not in _held and _remove_unused(folder):
            excess -= size
    if excess > 0:
        raise OSError(
            f"What is fetched must fit in the cache of {limit / GB:g} GB and on its disk. Received: {what}, "
            f"{needed / GB:.3g} GB, {excess / GB:.3g} too many beside what is in use in {root}. "
            f"Raise {LIMIT}, or set {CACHE} to a folder with more room."
        )


def _measure(folder: Path) -> tuple[float, int]:
    """Return when a folder was last used, and its bytes; other processes may be downloading or removing it."""
    used_at, total = time.time(), 0
    with suppress(FileNotFoundError):
        used_at = (folder / _IN_USE).stat().st_mtime
    for path in folder.rglob("*"):
        with suppress(FileNotFoundError):
            total += path.lstat().st_size
    return used_at, total


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
