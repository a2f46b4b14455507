"""docs/prefect.md: its commands parse, and run as they stand on a machine that has never seen Prefect."""

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from prefect.cli._app import _app  # the public `app` takes its arguments from the terminal alone

from flows.server import find_free_port
from tests.flows.conftest import ROOT
from tests.patience import PATIENCE_SECONDS

DOCS = ROOT / "docs" / "prefect.md"
ADDRESS = "http://127.0.0.1:4200"
SERVER = "prefect server start"
LEFT_RUNNING = "# leave running"
# A network of its own, where port 4200 is free; a user who is not root is made root of it.
OWN_NETWORK = ("unshare", "--map-root-user", "--net")
WAIT = f"""python - <<'END'
import time, urllib.request
deadline = time.monotonic() + {PATIENCE_SECONDS}
while True:
    try:
        urllib.request.urlopen("{ADDRESS}/api/health", timeout=10)
        break
    except OSError:
        assert time.monotonic() < deadline
        time.sleep(0.2)
END"""


def documented_block() -> list[str]:
    (block,) = re.findall(r"```\n(prefect .*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    return block.splitlines()


def test_commands_parse():
    lines = documented_block()
    assert lines[0] == f"prefect config set PREFECT_API_URL={ADDRESS}/api    # once"
    for line in lines:
        program, *arguments = shlex.split(line, comments=True)
        assert program == "prefect"
        _app.parse_args(arguments, exit_on_error=False, print_error=False)


def test_prefect_yaml_repeats_the_block():
    header = (ROOT / "flows" / "prefect.yaml").read_text(encoding="utf-8")
    assert re.findall(r"#   (prefect .*)", header) == documented_block()


def has_own_network() -> bool:
    probe = (*OWN_NETWORK, "ip", "link", "set", "lo", "up")
    tools = shutil.which("unshare") and shutil.which("ip")
    if not tools:
        return False
    return subprocess.run(probe, capture_output=True, timeout=PATIENCE_SECONDS, check=False).returncode == 0


def write_script(lines: list[str], port: int | None) -> str:
    """Write the block as a script that goes on, as a reader would, once the server answers."""
    commands = ["set -ex"] + ([] if port else ["ip link set lo up"])
    for line in lines:
        commands.append(f"{line.partition('#')[0]} &" if LEFT_RUNNING in line else line)
        if line.startswith(SERVER):
            commands += ["server=$!", WAIT]
    commands += ["kill $server", "wait $server || true", "kbf run configs/quickstart.yaml && exit 9", "test $? = 2"]
    commands += ["prefect config unset PREFECT_API_URL --yes", "kbf run configs/quickstart.yaml"]
    script = "\n".join(commands) + "\n"
    if port:  # 4200 may be taken: the port is all that differs
        script = script.replace(SERVER, f"{SERVER} --port {port}").replace("127.0.0.1:4200", f"127.0.0.1:{port}")
    return script


@pytest.fixture
def folder(tmp_path: Path, tiny_config: Path) -> Iterator[Path]:
    """A folder with the files that the block names, the configuration a tiny one; in the end nothing runs in it."""
    for name in ("configs", "flows", "home"):
        (tmp_path / name).mkdir()
    (tmp_path / "configs" / "quickstart.yaml").write_text(tiny_config.read_text() + "backend: torch\n")
    shutil.copy(ROOT / "flows" / "prefect.yaml", tmp_path / "flows")
    yield tmp_path
    for process in processes_at(tmp_path / "home"):
        process.kill()


def processes_at(home: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("HOME") == str(home):
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
def test_block_runs_in_an_empty_home(folder: Path):
    """No variable of Prefect's is set. With the server stopped, `kbf run` says what to do, and that helps."""
    port = None if has_own_network() else find_free_port()
    (folder / "block.sh").write_text(write_script(documented_block(), port))
    command = ("bash", "block.sh") if port else (*OWN_NETWORK, "bash", "block.sh")
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {"PATH": path, "HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}
    with open(folder / "output.txt", "w+b") as output:
        script = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=output, process_group=0)
        try:
            script.wait(PATIENCE_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGTERM)
            script.wait(PATIENCE_SECONDS)
    said = (folder / "output.txt").read_text(encoding="utf-8")
    assert script.returncode == 0, said
    assert "or `prefect config unset PREFECT_API_URL` to run without one" in " ".join(said.split())
    (report,) = folder.glob("runs/evaluation/*/report.html")
    assert f"Report: {report}" in said.splitlines()  # a worker that is stopped in the end may have the last word
