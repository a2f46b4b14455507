"""A process that holds what tests have imported, and forks for each command that they run.

Imports take most of the time of a short command: Keras and its backend are several seconds. A fork has them. It is a
process of its own in all else: environment, streams, signals, working directory, and an end with its clean-ups.
"""

import atexit
import json
import os
import runpy
import signal
import sys
import tempfile
import threading
import warnings
from pathlib import Path
from typing import IO, NoReturn

ROOT = Path(__file__).parents[1]
# What the imported modules read when they are called. Where another variable differs, nothing imported can be taken.
READ_LATE = ("PYTEST_", "KBF_", "COLUMNS", "OMP_WAIT_POLICY", "HF_HUB_DISABLE_PROGRESS_BARS", "WORLD_SIZE")
_before: dict[str, str] = {}  # the variables that it was started with
_filters = list(warnings.filters)  # without those of pytest, which adds them while it collects and tests
_pipes: tuple[IO[str], IO[str]] | None = None  # to the process, and from it


def start_forking() -> None:
    """Start the process. To be called where no other thread runs: a fork has none of them, but their locks."""
    global _pipes
    _before.update(os.environ, PYTHONPATH=str(ROOT))
    requests, answers = os.pipe(), os.pipe()
    if os.fork():
        os.close(requests[0])
        os.close(answers[1])
        _pipes = os.fdopen(requests[1], "w"), os.fdopen(answers[0])
    else:
        os.close(requests[1])
        os.close(answers[0])
        serve(os.fdopen(requests[0]), os.fdopen(answers[1], "w"))


def can_fork(environment: dict[str, str]) -> bool:
    """Say whether a fork is what a new interpreter with these variables would be."""
    differing = {name for name, _ in environment.items() ^ _before.items()}
    return _pipes is not None and all(name.startswith(READ_LATE) for name in differing)


def run_forked(arguments: list[str], environment: dict[str, str], folder: Path, timeout: int) -> tuple[int, str, str]:
    """Run `python -m keras_bert_flow` in a fork.

    Returns:
        (status, standard output, standard error), the status negative for a signal, as `subprocess` has it.
    """
    assert _pipes
    requests, answers = _pipes
    with tempfile.TemporaryDirectory(prefix="kbf-fork-") as scratch:
        streams = [f"{scratch}/output", f"{scratch}/error"]
        requests.write(json.dumps([arguments, environment, str(folder), streams]) + "\n")
        requests.flush()
        child = int(answers.readline())
        clock = threading.Timer(timeout, os.kill, (child, signal.SIGKILL))
        clock.start()
        try:
            status = int(answers.readline())
        finally:
            clock.cancel()
        output, error = (Path(stream).read_text(encoding="utf-8") for stream in streams)
    return status, output, error


def serve(requests: IO[str], answers: IO[str]) -> NoReturn:
    """Fork for each request, and answer with the number of the child and then its status; end where requests end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, whose end is the end of the requests
    for line in requests:
        child = os.fork()
        if not child:
            requests.close()
            answers.close()
            become_command(*json.loads(line))
        print(child, file=answers, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
    os._exit(0)


def become_command(arguments: list[str], environment: dict[str, str], folder: str, streams: list[str]) -> NoReturn:
    """Be `python -m keras_bert_flow` with these arguments, to its end."""
    for number, path in enumerate((os.devnull, *streams)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)
    sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
    threading.excepthook = threading.__excepthook__
    signal.signal(signal.SIGINT, signal.default_int_handler)
    warnings.filters[:] = _filters  # type: ignore[index]
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = ["keras_bert_flow", *arguments]
    status: int | str | None = 0
    try:
        runpy.run_module("keras_bert_flow", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        status = end.code
    except BaseException:
        status = 1
        sys.excepthook(*sys.exc_info())
    if isinstance(status, str):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(int(status or 0))
