"""File locks: one process at a time makes a result, and those that wait are told who holds the lock."""

import fcntl
import logging
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from keras_bert_flow.interrupts import on_leaving
from keras_bert_flow.shared_folders import name_owner, open_shared
from keras_bert_flow.terminal import abridge, escape_controls

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
