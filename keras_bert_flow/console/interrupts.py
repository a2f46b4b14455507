"""The end of a command: by a signal, with one line and a status, or by its time.

Ctrl-Z stops, and `fg` continues, a command together with its child processes, some of which have process groups of
their own. The handlers raise no exception. An exception raised inside a C++ callback, as in the imports and compilers
of the backends, is swallowed there or ends the process with SIGABRT. The handlers run the registered clean-ups, kill
child processes, and exit with `os._exit`. Nothing heavy may be imported here: this module is imported first.
"""

import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

# Exit statuses of the commands, for shells, schedulers and the flows that start commands.

ERRORS_FOUND = 1  # by the doctor
FAILED = 1  # a child process failed, through no fault of the input
USER_ERROR = 2
REPORTED = 3  # of a logger that has said what went wrong, so that its training need not
PROCESS_LOST = 69  # EX_UNAVAILABLE: another process of a distributed run ended or never came; run all again to resume
CHECKPOINTED = 75  # EX_TEMPFAIL of sysexits.h: stopped by a signal after a checkpoint; run again to resume
HUNG_UP = 129  # 128 + SIGHUP
INTERRUPTED = 130  # 128 + SIGINT
TERMINATED = 143  # 128 + SIGTERM


Undo = Callable[[bool], None]  # the argument: whether to hurry, because of a second signal
AGAIN = "run the same command again to complete it."
# A scheduler sends SIGTERM, a terminal that is closed SIGHUP: neither can be answered by a person at the keyboard.
UNATTENDED = (signal.SIGTERM, signal.SIGHUP)
STATUSES: dict[int, int] = {
    signal.SIGINT: INTERRUPTED,
    signal.SIGTERM: TERMINATED,
    signal.SIGHUP: HUNG_UP,
}
LINES: dict[int, str] = {
    signal.SIGINT: f"kbf: interrupted; {AGAIN}\n",
    signal.SIGTERM: f"kbf: terminated by SIGTERM; {AGAIN}\n",
    signal.SIGHUP: f"kbf: its terminal was closed (SIGHUP); {AGAIN}\n",
}
SHOW_CURSOR = b"\x1b[?25h"  # progress bars hide it
_TEMPORARY_MODULES = "__autograph_generated_file"  # TensorFlow removes their files only at a normal exit

_undo: list[Undo] = []
_is_leaving = False
_paused: list[int] = []  # process ids


def leave(number: int, frame: object) -> None:
    """Handle a signal: print its line, run the registered clean-ups, newest first, and exit with the signal's status.

    A second signal in the meantime makes it hurry, and prints nothing.
    """
    global _is_leaving
    hurry, _is_leaving = _is_leaving, True
    if not hurry:
        with suppress(OSError):
            for terminal in filter(os.isatty, (1, 2)):
                os.write(terminal, SHOW_CURSOR)
            before = "\n" if os.isatty(2) else ""
            os.write(2, f"{before}{LINES[number]}".encode())
        with suppress(OSError):
            _mute()
        _continue_paused()  # a stopped child would not see SIGTERM, and be killed without a checkpoint
    for undo in reversed(_undo):
        with suppress(Exception):
            undo(hurry)
    end_children()
    for name, module in list(sys.modules.items()):
        if name.startswith(_TEMPORARY_MODULES):
            with suppress(OSError, TypeError, AttributeError):
                os.remove(module.__file__ or "")
    os._exit(STATUSES[number])


def pause(number: int, frame: object) -> None:
    """Handle SIGTSTP, Ctrl-Z: stop together with all descendant processes until SIGCONT.

    Those in process groups of their own, which the terminal does not reach, would go on training. Where no shell could
    continue this process (an orphaned process group), the kernel discards the signal, and everything goes on.
    """
    if _paused:
        return
    _paused.extend(_find_descendants())
    for child in _paused:
        with suppress(OSError):
            os.kill(child, signal.SIGSTOP)
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)  # returns once this process is continued
    signal.signal(number, pause)
    _continue_paused()


def mute_closed_terminal() -> None:
    """Send what is written to a terminal to the null device: after SIGHUP, writing to it is an error."""
    for descriptor in (1, 2):
        with suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):  # `isatty` says no once the terminal is closed
                os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def leave_at_once(status: int) -> NoReturn:
    """End this process and its children without Python's shutdown.

    When another process of a distributed run is lost, the destructors of JAX's and TensorFlow's clients wait for it,
    and abort this process a minute later with a C++ stack.
    """
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    end_children()
    os._exit(status)


HANDLERS: dict[int, Callable[[int, object], None]] = {
    signal.SIGINT: leave,
    signal.SIGTERM: leave,
    signal.SIGHUP: leave,
    signal.SIGTSTP: pause,
}


# number → Python's own handler
DEFAULTS: dict[int, Callable | signal.Handlers] = {
    number: signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL for number in HANDLERS
}


def handle_signals() -> list[int]:
    """Install `HANDLERS`, but not for signals ignored (`nohup`) or handled by others; return the signals handled."""
    if threading.current_thread() is not threading.main_thread():
        return []
    numbers = [number for number in HANDLERS if signal.getsignal(number) == DEFAULTS[number]]
    for number in numbers:
        signal.signal(number, HANDLERS[number])
    return numbers


def ignore_signals() -> None:
    """Ignore the signals that are handled here: at the end of its shutdown, Python removes its handlers."""
    for number, handler in HANDLERS.items():
        if signal.getsignal(number) is handler:
            signal.signal(number, signal.SIG_IGN)


@contextmanager
def handling_signals() -> Iterator[None]:
    """Handle signals within the block."""
    numbers = handle_signals()
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, DEFAULTS[number])


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
def ending_with(numbers: Iterable[int], status: int, line: str) -> Iterator[None]:
    """Change the exit status and the line of signals within the block."""
    statuses, lines = {**STATUSES}, {**LINES}
    for number in numbers:
        STATUSES[number], LINES[number] = status, line
    try:
        yield
    finally:
        STATUSES.update(statuses)
        LINES.update(lines)


def end_children(hurry: bool = True) -> None:
    """Kill all descendant processes; does nothing without /proc."""
    children = _find_descendants()
    for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, so that none reports the death of another
        for child in children:
            with suppress(OSError):
                os.kill(child, number)


def _find_descendants() -> set[int]:
    parents = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        with suppress(OSError, ValueError, IndexError), open(f"/proc/{int(name)}/stat", "rb") as file:
            parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
    family = {os.getpid()}
    while grown := {child for child, parent in parents.items() if parent in family} - family:
        family |= grown
    return family - {os.getpid()}


def _continue_paused() -> None:
    while _paused:
        with suppress(OSError):
            os.kill(_paused.pop(), signal.SIGCONT)


def _mute() -> None:
    """Silence standard error: other threads fail when the processes and files that they use are ended or removed."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


# How long a command has run, and how much longer the stage that it is may take.

RUN_BEGAN = "KBF_RUN_BEGAN"  # variable: when the run of a command began, seconds since 1970
STAGE_SECONDS = "KBF_STAGE_SECONDS"  # variable: most seconds of the stage that a command is
_command_began: float | None = None


@contextmanager
def timing_command() -> Iterator[None]:
    """Count the time of a command, within the block: the loading of Keras is part of it."""
    global _command_began
    before, _command_began = _command_began, time.monotonic()
    try:
        yield
    finally:
        _command_began = before


def command_seconds() -> float:
    """Return for how long the command has run; 0.0 in a program of a user's."""
    return 0.0 if _command_began is None else time.monotonic() - _command_began


def stage_seconds(minutes: float) -> float:
    """Return how much longer a stage may take that has so many minutes, fewer if the run that it is of says so."""
    allowed = float(os.environ.get(STAGE_SECONDS, "inf"))
    return min(60 * minutes, allowed) - command_seconds()
