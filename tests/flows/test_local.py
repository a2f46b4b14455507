import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows.local import SERVER_LOG
from tests.flows.conftest import ROOT
from tests.flows.test_child import is_alive, wait_until

RUN = "import sys; from flows.local import run_locally; print(run_locally(sys.argv[1]))"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give Prefect a home of its own and no server."""
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    return tmp_path / "prefect"


def test_run_locally_leaves_no_process_and_gives_one_clean_line(home: Path):
    run = subprocess.run(
        (sys.executable, "-c", RUN, "absent.yaml"), cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    lines = run.stderr.strip().splitlines()
    assert lines[-1].startswith("ValueError: The configuration must be a file. Received: absent.yaml.")
    assert run.stdout == ""
    assert (home / SERVER_LOG).is_file()
    assert processes_of(home) == []


def test_run_locally_killed_by_9_leaves_no_process(home: Path, tiny_config: Path):
    run = subprocess.Popen((sys.executable, "-c", RUN, str(tiny_config)), cwd=ROOT, stdout=subprocess.PIPE)
    wait_until(lambda: len(processes_of(home)) >= 3, 60)  # the run, its server, its flow
    os.kill(run.pid, signal.SIGKILL)
    run.wait(10)
    wait_until(lambda: processes_of(home) == [])


def processes_of(home: Path) -> list[psutil.Process]:
    """Find the living processes that were given this home, whoever their parent is by now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PREFECT_HOME") == str(home) and is_alive(process.pid):
                found.append(process)
        except psutil.Error:
            continue
    return [process for process in found if process.pid != os.getpid()]
