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
from keras_bert_flow.terminal import abridge, escape_controls

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
        with open(path, "ab+", buffering=0) as file:  # "w" would empty the holder's file
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise
                if not has_told:
                    tell(f"Waiting for {path}, held by {_read_holder(file)}.")
                    has_told = True
                fcntl.flock(file, fcntl.LOCK_EX)
            if not _is_same_file(file, path):  # the holder before us removed it while we waited
                continue
            try:
                with suppress(OSError):  # a full disk is no obstacle to a lock
                    file.truncate(0)
                    file.write(_describe_process().encode(errors="replace"))
                with on_leaving(lambda _: path.unlink(missing_ok=True)):
                    yield
            finally:
                path.unlink(missing_ok=True)
            return


def find_holder(path: Path) -> str | None:
    """Return a description of the holder of a lock, or None if it is free; does not acquire the lock."""
    try:
        with open(path, "rb", buffering=0) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _read_holder(file)
    except FileNotFoundError:
        pass
    return None


def _describe_process() -> str:
    program = Path(sys.argv[0] or "python").name
    command = shlex.join(["kbf" if program == "__main__.py" else program, *sys.argv[1:]])
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    return f"process {os.getpid()} on {socket.gethostname()} since {since}: {command}"


def _read_holder(file: IO[bytes]) -> str:
    deadline = time.monotonic() + DESCRIBED_SECONDS
    while True:
        file.seek(0)
        holder = (file.read(4096) or b"").decode(errors="replace")
        if holder or time.monotonic() > deadline:
            return abridge(escape_controls(holder)) or "another process"
        time.sleep(0.02)


def _is_same_file(file: IO[bytes], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False
