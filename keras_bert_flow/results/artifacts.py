"""Content keys, digests and locks of results, and folders that are published by a rename when they are complete.

A stage's output is a folder named by a key: the digest of everything it was made from. It is built under another name
and renamed when it is complete, so a folder with a manifest is complete, even after a kill at any time.
"""

import errno
import fcntl
import hashlib
import json
import logging
import mmap
import os
import re
import shlex
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from keras_bert_flow.console.interrupts import on_leaving
from keras_bert_flow.console.terminal import abridge, escape_controls
from keras_bert_flow.files.outputs import existing_output, work_folder
from keras_bert_flow.files.paths import (
    check_local,
    check_work_folder,
    make_folder,
    name_owner,
    open_shared,
    refuse_link,
)
from keras_bert_flow.installed import find_version

KEY_LENGTH = 16  # hexadecimal digits; 64 bits: a collision needs some 10^9 results
CHUNK_BYTES = 1 << 20
TEMPORARY_SUFFIX = ".tmp"
SETTLED_SECONDS = 2.0  # a younger file may change again without a new time stamp, whose resolution is limited
UNNAMED = (errno.EACCES, errno.EROFS, errno.EIO)  # of a write, which Python raises without the name of the file
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of the disk, the user's quota, the process's limit


def content_key(stage: str, settings: Any, inputs: Mapping[str, str], revision: int) -> str:
    """Return the content key of a stage's result: a digest of everything that the result depends on.

    Args:
        stage: name of the stage.
        settings: JSON-like values that the result depends on, and no others.
        inputs: name of each input → digest of its content.
        revision: number of the code that makes it, which is raised when equal settings and inputs give another result.
    """
    facts = {"stage": stage, "settings": settings, "inputs": dict(inputs), "revision": revision}
    return hashlib.sha256(canonical_json(facts).encode()).hexdigest()[:KEY_LENGTH]


def canonical_json(value: Any) -> str:
    """Serialise a value as canonical JSON: equal values give equal texts."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def package_version() -> str:
    return find_version("keras-bert-flow") or "source"  # a source tree that is not installed


def file_digest(path: str | Path) -> str:
    """Return the sha256 of a file, read in chunks.

    The digest is cached for the life of the process, by the file's inode, size and times, so that several stages and
    checks read a model of 440 MB once. A file that was changed less than `SETTLED_SECONDS` ago is not cached.
    """
    with open(path, "rb") as file:
        return _find_digest(os.fstat(file.fileno()), lambda: hashlib.file_digest(file, "sha256"))


@dataclass(eq=False, repr=False)
class OpenedFiles:
    """Files that are opened once and memory-mapped, so that the bytes that are digested are those that are read.

    A file that is another one since, or has changed, is opened again.

    Args:
        passing: suffixes of files that are closed again once they are digested, as there may be thousands of them.
    """

    passing: tuple[str, ...] = ()
    _opened: dict[str, tuple[os.stat_result, mmap.mmap | bytes]] = field(init=False, default_factory=dict)

    def __reduce__(self):
        return OpenedFiles, (self.passing,)

    def map(self, path: str | Path) -> mmap.mmap | bytes:
        """Return the content of a file."""
        name = os.path.realpath(path)  # `verify` resolves links
        if name not in self._opened or _find_version(self._opened[name][0]) != _find_version(os.stat(name)):
            with open(name, "rb") as file:
                status = os.fstat(file.fileno())
                content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if status.st_size else b""
            self._opened[name] = status, content
        return self._opened[name][1]

    def read(self, path: str | Path, limit: int = -1) -> bytes:
        """Return the first bytes of a file, at most `limit`; -1: all."""
        return self.map(path)[: None if limit < 0 else limit]

    def digest(self, path: str | Path) -> str:
        """Return the sha256 of a file, cached as by `file_digest`."""
        if os.fspath(path).endswith(self.passing):
            return file_digest(path)
        content = self.map(path)
        status, _ = self._opened[os.path.realpath(path)]
        return _find_digest(status, lambda: _hash(content))


def release(content: mmap.mmap | bytes) -> None:
    """Let go of the pages of a mapped file that were read, which would count as memory of the process."""
    if isinstance(content, mmap.mmap):
        content.madvise(mmap.MADV_DONTNEED)


def _hash(content: mmap.mmap | bytes) -> Any:
    digest, view = hashlib.sha256(), memoryview(content)
    for start in range(0, len(view), CHUNK_BYTES):
        digest.update(view[start : start + CHUNK_BYTES])
        release(content)
    return digest


def remember_digest(path: str | Path, digest: str) -> None:
    """Cache a known digest for `file_digest`; the file must not change any more."""
    _digests[_find_version(os.stat(path))] = digest


@contextmanager
def publishing(output: str | Path, resumable: bool = False) -> Iterator[Path]:
    """Yield a work folder that becomes `output` when the block ends without an error.

    A second writer of the same output waits. A work folder left by a killed run is emptied first, or kept if the
    stage is resumable. After an error, a resumable stage keeps its work folder; any other stage leaves nothing.

    Raises:
        ValueError: `output` is not on a local disk.
        FileExistsError: `output` exists; the caller checks first whether it is the wanted result. Or what is at the
            path of the work folder is a link, or no folder.
        OSError: the location is not writable, or its disk is full.
    """
    output = check_local(output).absolute()
    work = work_folder(output)
    refuse_link(work)
    make_folder(output.parent)
    with locked(output.with_name(f".{output.name}.lock")):
        if output.exists():
            raise existing_output(output)
        check_work_folder(work)
        try:
            with on_leaving(lambda _: _discard(work, resumable)):  # first: a signal may arrive at once
                if not resumable:
                    _discard(work, resumable)
                work.mkdir(exist_ok=resumable)  # fails if rmtree failed: old files must not be published
                # Temporary files of killed runs would be published with it.
                for path in list(work.rglob(f".*{TEMPORARY_SUFFIX}")):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
                yield work
                sync_folder(work)
                os.rename(work, output)
            sync_folder(output.parent, is_deep=False)
        except BaseException as error:
            _discard(work, resumable)
            if reason := _find_no_room(error):
                left = f"{work} is kept" if work.exists() else "nothing of it is left"
                raise OSError(
                    f"The output must fit on its disk. Received: {output}, {reason}; {left}. Make room and run the "
                    "same command again, or choose another place."
                ) from error
            if isinstance(error, OSError) and error.errno in UNNAMED and error.filename is None:
                error.filename = str(work)
            raise


def write_atomically(path: str | Path, content: bytes) -> None:
    """Write a file atomically: readers see the old bytes or the new ones."""
    path = Path(path)
    temporary = temporary_path(path)
    try:
        with removed_on_leaving(temporary):
            with open(temporary, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def removed_on_leaving(path: str | Path) -> Iterator[None]:
    """Remove a file or folder, if it exists, when a signal ends the process within the block."""

    def remove(hurry: bool) -> None:
        if os.path.isdir(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink(missing_ok=True)

    with on_leaving(remove):
        yield


def follow_umask(path: Path) -> None:
    """Set a file's mode according to the umask; some libraries create files that only their owner can read."""
    probe = temporary_path(path)  # `os.umask` would change the umask for other threads
    probe.touch()
    mode = probe.stat().st_mode & 0o777
    probe.unlink()
    path.chmod(mode)


def sync_folder(folder: Path, is_deep: bool = True) -> None:
    """Flush a folder to the disk (fsync), by default with everything in it."""
    for path in (*folder.rglob("*"), folder) if is_deep else (folder,):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


_CUT_ARRAY = re.compile(r"^\d+ requested and \d+ written")  # of NumPy
_digests: dict[tuple[int, ...], str] = {}


def _find_digest(status: os.stat_result, compute: Callable[[], Any]) -> str:
    """Return the digest of a file in a state: a known one, or else the one that is computed."""
    version, now = _find_version(status), time.time()
    if version in _digests:
        return _digests[version]
    digest = compute().hexdigest()
    if now - max(status.st_mtime, status.st_ctime) > SETTLED_SECONDS:
        _digests[version] = digest
    return digest


def _find_version(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _find_no_room(error: BaseException) -> str:
    """Return how an error says that no room was left on the disk; empty if it does not.

    safetensors, Beam and others raise errors of their own that quote the system's, and NumPy counts what was written.
    """
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return os.strerror(error.errno).lower()
    if isinstance(error, Exception):
        quoted = [os.strerror(number) for number in NO_ROOM if os.strerror(number) in str(error)]
        is_cut = isinstance(error, OSError) and _CUT_ARRAY.search(str(error))
        return quoted[0].lower() if quoted else "an array was not written whole" if is_cut else ""
    return ""


def _discard(work: Path, resumable: bool) -> None:
    """Remove a work folder that will not be published, unless it holds something to resume.

    Removing is retried for a few seconds, since a worker of a killed run may still write to the folder.
    """
    if resumable:
        if work.is_dir() and not any(work.iterdir()):
            work.rmdir()
        return
    for _ in range(50):
        shutil.rmtree(work, ignore_errors=True)
        if not work.exists():
            return
        time.sleep(0.1)


def temporary_path(path: Path) -> Path:
    """Return a name next to a file, for its content until it is complete."""
    return path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")


# File locks, so that one process makes a result.

WAITING = "Waiting for "
RUN_NAME = "KBF_RUN_NAME"  # environment variable: the name of the flow run that a process is part of
DESCRIBED_SECONDS = 0.5  # how long to wait for a new holder to write its description

_logger = logging.getLogger(__name__)


@contextmanager
def locked(path: Path, wait: bool = True, tell: Callable[[str], None] = _logger.warning) -> Iterator[None]:
    """Hold an advisory lock; the system releases it when the process dies, however it dies.

    While the lock is held, the file holds the process, host, start time and command of the holder.

    Args:
        wait: wait for another holder, however long it takes.
        tell: called before a wait with one line that names the holder; by default a warning is logged.
    Raises:
        BlockingIOError: another process holds the lock, and `wait` is False.
    """
    has_told = False
    while True:
        with _open(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise
                if not has_told:
                    tell(f"{WAITING}{path}, held by {read_holder(file)}.")
                    has_told = True
                fcntl.flock(file, fcntl.LOCK_EX)
            if not is_same_file(file, path):  # the holder before us removed it while we waited
                continue
            try:
                with suppress(OSError):  # a full disk, or another user's file, is no obstacle to a lock
                    file.truncate(0)
                    file.seek(0)
                    file.write(describe_process().encode(errors="replace"))
                with on_leaving(lambda _: path.unlink(missing_ok=True)):
                    yield
            finally:
                with suppress(OSError):  # another user's in a folder that is open to all
                    path.unlink(missing_ok=True)
            return


def find_holder(path: Path) -> str | None:
    """Return a description of the holder of a lock, or None if it is free; does not acquire the lock."""
    try:
        with _open(path, is_made=False) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return read_holder(file)
    except FileNotFoundError:
        pass
    except PermissionError:
        return f"a process of {name_owner(path.lstat().st_uid)}, whose lock you may not read"
    return None


def describe_process() -> str:
    """Return a description of this process for those who wait for it."""
    program = Path(sys.argv[0] or "python").name
    command = shlex.join(["kbf" if program == "__main__.py" else program, *sys.argv[1:]])
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    run = " ".join(os.environ.get(RUN_NAME, "").split())
    of_run = f" of the run `{run}`" if run else ""
    return f"process {os.getpid()}{of_run} on {socket.gethostname()} since {since}: {command}"


def read_holder(file: IO[bytes]) -> str:
    """Return what the holder of a lock wrote into its file, fit for one line."""
    deadline = time.monotonic() + DESCRIBED_SECONDS
    while True:
        file.seek(0)
        holder = (file.read(4096) or b"").decode(errors="replace")
        if holder or time.monotonic() > deadline:
            return abridge(escape_controls(holder)) or "another process"
        time.sleep(0.02)


def _open(path: Path, is_made: bool = True) -> IO[bytes]:
    """Open a lock file, another user's for reading only."""
    descriptor = open_shared(path, is_made)
    is_ours = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDWR
    return os.fdopen(descriptor, "rb+" if is_ours else "rb", buffering=0)


def is_same_file(file: IO, path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
