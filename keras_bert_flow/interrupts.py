"""Signal handlers: end a command on Ctrl-C or SIGTERM with one line and an exit status, whatever it is doing.

The handlers raise no exception. An exception raised inside a C++ callback, as in the imports and compilers of the
backends, is swallowed there or ends the process with SIGABRT. The handlers run the registered clean-ups, kill child
processes, and exit with `os._exit`. Nothing heavy may be imported here: this module is imported before all others.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from keras_bert_flow import exit_status

Undo = Callable[[bool], None]  # the argument: whether to hurry, because of a second signal
AGAIN = "run the same command again to complete it."
STATUSES: dict[int, int] = {signal.SIGINT: exit_status.INTERRUPTED, signal.SIGTERM: exit_status.TERMINATED}
LINES: dict[int, str] = {
    signal.SIGINT: f"kbf: interrupted; {AGAIN}\n",
    signal.SIGTERM: f"kbf: terminated by SIGTERM; {AGAIN}\n",
}
_DEFAULTS: dict[int, Callable | signal.Handlers] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}
SHOW_CURSOR = b"\x1b[?25h"  # progress bars hide it
_TEMPORARY_MODULES = "__autograph_generated_file"  # TensorFlow removes their files only at a normal exit

_undo: list[Undo] = []
_is_leaving = False


def leave(number: int, frame: object) -> None:
    """Handle a signal: print its line, run the registered clean-ups, newest first, and exit with the signal's status.

    A second signal in the meantime makes it hurry, and prints nothing.
    """
    global _is_leaving
    hurry, _is_leaving = _is_leaving, True
    if not hurry:
        with suppress(OSError):
            _say(LINES[number])
            _mute()
    for undo in reversed(_undo):
        with suppress(Exception):
            undo(hurry)
    end_children()
    _remove_temporary_modules()
    os._exit(STATUSES[number])


def handle_signals() -> list[int]:
    """Install `leave` for SIGINT and SIGTERM, unless ignored or handled by others; return the signals it handles."""
    if threading.current_thread() is not threading.main_thread():
        return []
    numbers = [number for number, default in _DEFAULTS.items() if signal.getsignal(number) is default]
    for number in numbers:
        signal.signal(number, leave)
    return numbers


def ignore_signals() -> None:
    """Ignore the signals that `leave` handles: at the end of its shutdown, Python removes its handlers."""
    for number in _DEFAULTS:
        if signal.getsignal(number) is leave:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def handling_signals() -> Iterator[None]:
    """Handle signals with `leave` within the block."""
    numbers = handle_signals()
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, _DEFAULTS[number])


@contextmanager
def on_leaving(undo: Undo) -> Iterator[None]:
    """Register a clean-up to run on a signal within the block.

    It runs in a signal handler, so it must not wait for a lock that the interrupted code may hold.
    """
    _undo.append(undo)
    try:
        yield
    finally:
        _undo.remove(undo)


@contextmanager
def ending_with(number: int, status: int, line: str) -> Iterator[None]:
    """Change the exit status and the line of a signal within the block."""
    before = STATUSES[number], LINES[number]
    STATUSES[number], LINES[number] = status, line
    try:
        yield
    finally:
        STATUSES[number], LINES[number] = before


def end_children(hurry: bool = True) -> None:
    """Kill all descendant processes; does nothing without /proc."""
    parents = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{int(name)}/stat", "rb") as file:
            parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    family = {os.getpid()}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none reports the death of another
        for child in family - {os.getpid()}:
            with suppress(OSError):
                os.kill(child, number)


def _say(line: str) -> None:
    for terminal in filter(os.isatty, (1, 2)):
        os.write(terminal, SHOW_CURSOR)
    os.write(2, f"\n{line}".encode() if os.isatty(2) else line.encode())


def _mute() -> None:
    """Silence standard error: other threads fail when the processes and files that they use are ended or removed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _remove_temporary_modules() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith(_TEMPORARY_MODULES):
            with suppress(OSError, TypeError, AttributeError):
                os.remove(module.__file__ or "")
