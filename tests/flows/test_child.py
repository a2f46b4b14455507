import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from flows.child import run_child, start_child, stop_child
from keras_bert_flow.console.interrupts import TERMINATED
from tests.flows.conftest import ROOT
from tests.patience import PATIENCE_SECONDS, wait_until

SLEEPER = "import os, sys, time; print('pid', os.getpid(), flush=True); time.sleep(1000)"
CATCHER = """
import os, signal, sys, time
def stop(*_):
    print("caught", flush=True)
    open(sys.argv[1], "w").close()
    sys.exit(75)
signal.signal(signal.SIGTERM, stop)
print("pid", os.getpid(), flush=True)
time.sleep(1000)
"""
PARENT = "import sys; from flows.child import run_child; run_child((sys.executable, *sys.argv[1:]), {}, print)"
HANDLING_PARENT = "from keras_bert_flow.console.interrupts import handle_signals; handle_signals(); " + PARENT


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def start_parent(*arguments: str, code: str = PARENT, **options: Any) -> tuple[subprocess.Popen, int]:
    """Start a process that runs a child by `run_child`; return it and the child's process id."""
    command = (sys.executable, "-u", "-c", code, *arguments)
    parent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, **options)
    return parent, int(parent.stdout.readline().split()[1])


def test_run_child_hands_over_plain_lines_and_the_status():
    lines = []
    code = r"import sys; print('\x1b[32mgreen\x1b[0m'); print('1%\r2%'); print('oh', file=sys.stderr); sys.exit(3)"
    assert run_child((sys.executable, "-c", code), {}, lines.append) == 3
    assert lines == ["green", "1%", "2%", "oh"]


def test_run_child_hands_over_names_whole():
    """Colours are taken out of lines; other escapes are those of a name, which whoever shows the line escapes."""
    lines = []
    code = r"print('\x1b[32mout/\x1b]0;pwned\x07\x1b[2J/vocab.txt\x1b[K')"
    assert run_child((sys.executable, "-c", code), {}, lines.append) == 0
    assert lines == ["out/\x1b]0;pwned\x07\x1b[2J/vocab.txt"]


def test_run_child_adds_to_the_environment():
    lines = []
    code = "import os; print(os.environ['KERAS_BACKEND'], os.environ['NO_COLOR'], 'PATH' in os.environ)"
    run_child((sys.executable, "-c", code), {"KERAS_BACKEND": "torch"}, lines.append)
    assert lines == ["torch 1 True"]


def test_run_child_returns_though_a_grandchild_holds_the_pipe():
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPER!r}]); print('done')"
    started = time.monotonic()
    assert run_child((sys.executable, "-c", code), {}, lambda line: None) == 0
    assert time.monotonic() - started < PATIENCE_SECONDS


def test_child_dies_with_a_parent_killed_by_9():
    parent, child = start_parent("-c", SLEEPER)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(PATIENCE_SECONDS)
    wait_until(lambda: not is_alive(child))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_reach_the_child_as_sigterm(number: int, tmp_path: Path):
    parent, child = start_parent("-c", CATCHER, str(tmp_path / "caught"))
    os.kill(parent.pid, number)
    assert parent.wait(PATIENCE_SECONDS) != 0
    assert (tmp_path / "caught").exists()
    assert not is_alive(child)


def is_stopped(pid: int) -> bool:
    return psutil.Process(pid).status() == psutil.STATUS_STOPPED


def test_stopping_by_ctrl_z_and_continuing_reach_the_child(tmp_path: Path):
    """The child has a process group of its own, which a terminal does not reach."""
    # not orphaned, as that of a job of a shell
    parent, child = start_parent("-c", CATCHER, str(tmp_path / "caught"), code=HANDLING_PARENT, process_group=0)
    for _ in range(2):
        os.kill(parent.pid, signal.SIGTSTP)
        wait_until(lambda: is_stopped(parent.pid) and is_stopped(child))
        os.kill(parent.pid, signal.SIGCONT)
        wait_until(lambda: not is_stopped(parent.pid) and not is_stopped(child))
    os.kill(parent.pid, signal.SIGTSTP)
    wait_until(lambda: is_stopped(parent.pid))
    os.kill(parent.pid, signal.SIGTERM)  # as `kill %1` of a shell, which then continues the job
    os.kill(parent.pid, signal.SIGCONT)
    assert parent.wait(PATIENCE_SECONDS) == TERMINATED
    assert (tmp_path / "caught").exists()
    assert not is_alive(child)


def test_ctrl_z_that_no_shell_could_undo_stops_nothing(tmp_path: Path):
    # of an orphaned process group
    parent, child = start_parent("-c", CATCHER, str(tmp_path / "caught"), code=HANDLING_PARENT, start_new_session=True)
    os.kill(parent.pid, signal.SIGTSTP)
    os.kill(parent.pid, signal.SIGTERM)  # at once: the system hands it to another thread, if there is one that takes it
    assert parent.wait(PATIENCE_SECONDS) == TERMINATED
    assert (tmp_path / "caught").exists()
    assert not is_alive(child)


def test_stop_child_kills_what_does_not_listen(tmp_path: Path):
    ignore = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    code = "open(sys.argv[1], 'w'); time.sleep(1000)"
    child = start_child((sys.executable, "-c", ignore + code, str(tmp_path / "ready")), {}, subprocess.DEVNULL)
    wait_until((tmp_path / "ready").exists)
    stop_child(child, 0.2)
    assert child.returncode == -signal.SIGKILL


def test_what_is_raised_while_a_child_runs_stops_it_with_a_grace(tmp_path):
    code = (
        "import signal, sys, time\n"
        "def leave(*_):\n    print('saved', flush=True)\n    sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, leave)\nprint('begun', flush=True)\ntime.sleep(600)"
    )
    lines = []

    def follow():
        if lines:
            raise LookupError("enough")

    with pytest.raises(LookupError, match="enough"):
        run_child([sys.executable, "-c", code], {}, lines.append, follow=follow)
    assert lines == ["begun", "saved"]


def test_output_of_a_child_holds_no_password():
    lines = []
    code = "print('No answer from http://me:SECRET@host/x')"
    assert run_child((sys.executable, "-c", code), {}, lines.append) == 0
    assert lines == ["No answer from http://***@host/x"]
