"""File locks, so that one process makes a result, and leases, which keep what running commands need from `gc`."""

import fcntl
import logging
import os
import re
import shlex
import socket
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO

from keras_bert_flow.console.interrupts import on_leaving
from keras_bert_flow.console.terminal import abridge, escape_controls
from keras_bert_flow.files.outputs import MANIFEST
from keras_bert_flow.files.paths import make_folder, name_owner, open_shared

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
            if not _is_same_file(file, path):  # the holder before us removed it while we waited
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


def _is_same_file(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


# Leases: what running commands need from a folder of results, so that `kbf runs gc` keeps it.
#
# A run holds a lease on its folder of results: a locked file that lists the keys of the results that it has found,
# makes or plans to use, or says that the run does not know them yet. A command holds the published folders that it
# reads: a shared lock on the manifest of each, which needs no right to write. These are locks of the system, which end
# with their process. Before a result is removed, `pausing_runs` keeps runs from finding it.

LEASE = "KBF_LEASE"  # environment variable: the lease of the run that a process is part of
PAUSE = ".gc.lock"
UNSEEN_SECONDS = (
    86400.0  # how long the lease of another machine counts whose lock is not seen, as on some network disks
)
_NAME = re.compile(r"\.run-[0-9a-f]{32}\.lease")
_READERS = re.compile(r"\d+: FLOCK +ADVISORY +READ +(\d+) [0-9a-f]+:[0-9a-f]+:(\d+) ")  # a line of /proc/locks

_runs: list["RunLease"] = []  # of this process, the newest last
_readings: list[dict[Path, int]] = []  # folder → descriptor of its manifest, for each block of `holding_inputs`


@dataclass(frozen=True)
class Needs:
    """What a run that is alive needs.

    Attributes:
        holder: description of its process.
        keys: of the results that it needs.
        is_open: it does not know yet what else it needs.
    """

    holder: str
    keys: frozenset[str]
    is_open: bool


class RunLease:
    """The part of a process in the lease of a run.

    Args:
        path: the lease, to which processes append lines: `+N`, process N does not know yet what it needs, `-N`, it
            does, and keys.
    """

    def __init__(self, path: Path):
        self._path, self._known = path, set[str]()
        self._is_open = True
        self._append(f"+{os.getpid()}")

    def add(self, key: str) -> None:
        if key not in self._known:
            self._known.add(key)
            self._append(key)

    def close(self) -> None:
        """Hold only the keys that were added, and no longer everything."""
        if self._is_open:
            self._is_open = False
            self._append(f"-{os.getpid()}")

    def _append(self, line: str) -> None:
        with suppress(OSError):  # a full disk, or a folder that was removed
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
            try:
                os.write(descriptor, f"\n{line}".encode())
            finally:
                os.close(descriptor)
            if not line.startswith("-"):  # a removal that was decided before is completed before anything is looked up
                with locked(self._path.with_name(PAUSE)):
                    pass


@contextmanager
def holding_results(store: Path) -> Iterator[RunLease | None]:
    """Hold a lease on everything in a folder of results, until its `close`, and then on the keys that it was given.

    The processes that are started within the block may take part in it. Nothing is held if the folder may not be
    written: then nothing is made in it either.
    """
    given = os.environ.get(LEASE)
    store = Path(os.path.realpath(store))
    with ExitStack() as held:
        if given and Path(given).parent == store and find_holder(Path(given)) is not None:
            path = Path(given)
        else:
            path = store / f".run-{uuid.uuid4().hex}.lease"
            if not store.is_dir():
                held.callback(_remove_empty, store)  # of a run that was refused before its first stage
            try:
                make_folder(store)
                held.enter_context(locked(path))
            except OSError:
                yield None
                return
            os.environ[LEASE] = str(path)
            held.callback(os.environ.pop, LEASE, None)
        lease = RunLease(path)
        _runs.append(lease)
        held.callback(_runs.remove, lease)
        held.callback(lease.close)
        yield lease


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def hold_key(key: str) -> None:
    """Hold a result of this process' run, whether it exists or not."""
    for lease in _runs[-1:]:
        lease.add(key)


def close_plan() -> None:
    """Say that this process' run has found what exists of the results that it needs."""
    for lease in _runs[-1:]:
        lease.close()


@contextmanager
def holding_inputs() -> Iterator[None]:
    """Hold the published folders that are verified within the block, until it ends."""
    held: dict[Path, int] = {}
    _readings.append(held)
    try:
        yield
    finally:
        _readings.remove(held)
        for descriptor in held.values():
            os.close(descriptor)


def hold_input(folder: Path) -> None:
    """Hold a published folder that is read, within a block of `holding_inputs`."""
    if not _readings or folder in _readings[-1]:
        return
    with suppress(OSError):  # file systems without locks
        descriptor = os.open(folder / MANIFEST, os.O_RDONLY)
        _readings[-1][folder] = descriptor
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def find_needs(store: Path) -> list[Needs]:
    """Return what each run that is alive needs from a folder of results, or from the one around it."""
    found = []
    for path in (*store.glob(".run-*.lease"), *store.absolute().parent.glob(".run-*.lease")):
        if not _NAME.fullmatch(path.name):
            continue
        is_held = find_holder(path) is not None
        try:
            holder, *lines = path.read_text(errors="replace").split("\n")
            is_held = is_held or _may_be_unseen(holder, path.stat().st_mtime)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                continue
            holder, lines = "a process whose lease you may not read", []
        if not is_held:
            with suppress(OSError), locked(path, wait=False):  # which removes it: its process is dead
                continue
        is_open = {line[1:]: line[0] == "+" for line in lines if line[:1] in ("+", "-")}
        keys = frozenset(line for line in lines if line[:1] not in ("", "+", "-"))
        holder = abridge(escape_controls(holder)) or "another process"
        found.append(Needs(holder, keys, not is_open or any(is_open.values())))
    return found


def find_reader(folder: Path) -> str | None:
    """Return a description of a process that reads a published folder; None if none holds it."""
    try:
        with open(folder / MANIFEST, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return _describe_reader(os.fstat(file.fileno()).st_ino)
    except OSError:
        pass
    return None


@contextmanager
def pausing_runs(store: Path) -> Iterator[None]:
    """Keep runs from finding, or counting on, results of a folder within the block."""
    with locked(store / PAUSE):
        yield


def _may_be_unseen(holder: str, changed_at: float) -> bool:
    is_ours = f" on {socket.gethostname()} since " in holder
    return not is_ours and time.time() - changed_at < UNSEEN_SECONDS


def _describe_reader(inode: int) -> str:
    with suppress(OSError):
        for process, locked_inode in _READERS.findall(Path("/proc/locks").read_text()):
            if int(locked_inode) == inode:
                words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
                command = shlex.join(word for word in words if word)
                return abridge(escape_controls(f"process {process}: {command}"))
    return "another process"
