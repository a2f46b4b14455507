"""Leases: what running commands need from a folder of results, so that `kbf runs gc` keeps it.

A run holds a lease on its folder of results: a locked file that lists the keys of the results that it has found, makes
or plans to use, or says that the run does not know them yet. A command holds the published folders that it reads: a
shared lock on the manifest of each, which needs no right to write. These are locks of the system, which end with their
process. Before a result is removed, `pausing_runs` keeps runs from finding it.
"""

import fcntl
import os
import re
import shlex
import socket
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from keras_bert_flow.locks import find_holder, locked
from keras_bert_flow.outputs import MANIFEST
from keras_bert_flow.shared_folders import make_folder
from keras_bert_flow.terminal import abridge, escape_controls

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
