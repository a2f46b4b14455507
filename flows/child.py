"""Run a command as a child process that never outlives this one, passing on its output lines and our signals."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from keras_bert_flow.console.interrupts import UNATTENDED, on_leaving
from keras_bert_flow.console.terminal import hide_credentials
from keras_bert_flow.installed import child_environment

GRACE_SECONDS = 25.0  # from SIGTERM to SIGKILL: time to write a checkpoint, within the 30 s of Prefect's worker
POLL_SECONDS = 0.05
FOLLOW_SECONDS = 0.25
DRAIN_SECONDS = 5.0  # to wait for the last lines if a grandchild still holds the pipe
PLAIN_OUTPUT = {"NO_COLOR": "1", "TERM": "dumb", "PYTHONUNBUFFERED": "1"}

# Followed by the id of the process to end with, and the command
GUARD = (sys.executable, "-I", "-S", str(Path(__file__).with_name("guard.py")))

_running: list[subprocess.Popen] = []  # children of `run_child`, in all threads

_COLOURS = re.compile(r"\x1b\[[\d;?]*[mKhl]")  # and cursor movements of progress bars; all else is text to keep


def run_child(
    command: Sequence[str],
    environment: Mapping[str, str],
    on_line: Callable[[str], None],
    grace_seconds: float = GRACE_SECONDS,
    follow: Callable[[], object] | None = None,
) -> int:
    """Run a command to its end.

    SIGTERM, SIGHUP, SIGINT or an exception here sends SIGTERM to the child, and SIGKILL to its group after the grace
    period.

    Args:
        environment: variables to add to ours.
        on_line: takes each line of output, including standard error, without colours; called from another thread.
        follow: called repeatedly while the command runs; an exception that it raises stops the child.
    Returns:
        The exit status, or the negative number of the signal that ended the child.
    """
    with _unattended_signals_raise():
        child = start_child(command, PLAIN_OUTPUT | dict(environment), subprocess.PIPE)
        reader = threading.Thread(target=_read_lines, args=(child.stdout, on_line), daemon=True)
        reader.start()
        _running.append(child)
        try:
            with ended_on_leaving(lambda: child, grace_seconds):
                while follow is not None:
                    try:
                        return child.wait(FOLLOW_SECONDS)
                    except subprocess.TimeoutExpired:
                        follow()
                return child.wait()
        finally:
            _running.remove(child)
            stop_child(child, grace_seconds)
            reader.join(DRAIN_SECONDS)


def stop_children(grace_seconds: float) -> None:
    """Stop all children that `run_child` waits for in other threads, at the same time."""
    children = [*_running]
    for child in children:
        with suppress(ProcessLookupError):
            child.terminate()
    deadline = time.monotonic() + grace_seconds
    while time.monotonic() < deadline and any(child.poll() is None for child in children):
        time.sleep(POLL_SECONDS)
    for child in children:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)


def start_child(command: Sequence[str], environment: Mapping[str, str], output: int | IO[bytes]) -> subprocess.Popen:
    """Start a command in a process group of its own; it ends when this thread ends, however that happens.

    A Python command imports this project's packages, regardless of the working directory.
    """
    return subprocess.Popen(
        (*GUARD, str(os.getpid()), *command),
        env=os.environ | child_environment() | dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        process_group=0,
    )


def stop_child(child: subprocess.Popen, grace_seconds: float) -> None:
    """Ask a child to stop, wait for the grace period, then kill the rest of its group."""
    try:
        if child.poll() is None:
            child.terminate()
            child.wait(grace_seconds)
    except subprocess.TimeoutExpired:
        pass
    finally:
        with suppress(ProcessLookupError, PermissionError):  # nothing left to kill; macOS then raises PermissionError
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@contextmanager
def ended_on_leaving(find_child: Callable[[], subprocess.Popen], grace_seconds: float) -> Iterator[None]:
    """Stop a child, as `stop_child` does, when a signal ends this process within the block.

    The methods of `Popen` are not used, since the interrupted code may hold its lock.

    Args:
        find_child: returns the current child.
    """

    def end(hurry: bool) -> None:
        child = find_child()
        deadline = time.monotonic() + (0.0 if hurry else grace_seconds)
        with suppress(ProcessLookupError, ChildProcessError):
            os.kill(child.pid, signal.SIGTERM)
            while time.monotonic() < deadline and os.waitpid(child.pid, os.WNOHANG) == (0, 0):
                time.sleep(POLL_SECONDS)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)

    with on_leaving(end):
        yield


def _read_lines(stream: IO[bytes], on_line: Callable[[str], None]) -> None:
    """Pass on output line by line, without credentials; each redraw of a progress bar, by a carriage return, is one."""
    # A signal that the system hands to this thread would not wake the main one, which waits for the child.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    with stream:
        for chunk in stream:
            for line in re.split(r"[\r\n]", _COLOURS.sub("", chunk.decode("utf-8", "replace"))):
                if line.strip():
                    on_line(hide_credentials(line.rstrip()))


@contextmanager
def _unattended_signals_raise() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit if they would end this process at once: the child gets its grace period.

    An existing handler stays, such as that of Prefect's engine, which raises.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = [number for number in UNATTENDED if signal.getsignal(number) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)
