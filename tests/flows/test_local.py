"""Whole runs of `run_locally`, in processes of their own, with a stand-in for the commands of the stages."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.request
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from flows.local import SERVER_LOG, run_flow
from flows.server import find_free_port, running_server
from flows.stages import StageError
from tests.commands import kbf
from tests.flows.conftest import ROOT
from tests.flows.test_child import is_alive
from tests.patience import PATIENCE_SECONDS, wait_until
from tests.strangers import write_strangers

DATABASE = "prefect.db"
RUN = "import sys; from flows.local import run_locally; print(run_locally(*sys.argv[1:]))"
STAGES = ["vocabulary", "records", "pretraining", "finetuning", "evaluation"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, prefect_server: Path) -> Path:
    """A home for Prefect with the tables of another server, which take seconds to make."""
    home = tmp_path_factory.mktemp("prefect")
    with closing(sqlite3.connect(prefect_server)) as made, closing(sqlite3.connect(home / DATABASE)) as copy:
        made.backup(copy)
    return home


@pytest.fixture
def start(home: Path, tiny_config: Path):
    """Return a function that starts a run with no server set, among modules of a user's with the names of ours."""
    write_strangers(tiny_config.parent)

    def start_run(config: str = "tiny.yaml", **settings: str) -> subprocess.Popen:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        path = os.pathsep.join((str(ROOT / "tests" / "flows" / "standin"), str(ROOT)))
        environment |= {"PREFECT_HOME": str(home), "PYTHONPATH": path} | settings
        return subprocess.Popen(
            (sys.executable, "-P", "-c", RUN, config),
            cwd=tiny_config.parent,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return start_run


def processes_of(home: Path) -> list[int]:
    """Find the living processes that were given this home, whoever their parent is by now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("PREFECT_HOME") == str(home) and is_alive(process.pid):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def test_run_says_what_the_stages_say_and_leaves_no_process(start, home: Path, tmp_path: Path, tiny_config: Path):
    said, complained = start().communicate(timeout=PATIENCE_SECONDS)
    *lines, report = said.splitlines()
    assert Path(report).is_file() and report.startswith(str(tiny_config.parent))
    assert [line.split()[0] for line in lines if ": running: " in line] == STAGES
    assert "vocab says hello" in lines
    assert complained == ""
    assert not list((tiny_config.parent / "runs").glob(".*"))
    assert (home / SERVER_LOG).is_file()
    with closing(sqlite3.connect(home / DATABASE)) as database:  # which a first start would register
        assert database.execute("select count(*) from block_type").fetchone() == (0,)
    assert processes_of(home) == []
    again, complained = start(PREFECT_HOME=str(tmp_path / "unused")).communicate(timeout=PATIENCE_SECONDS)
    assert [line.split()[0] for line in again.splitlines()[:-1] if ": is there, in " in line] == STAGES
    assert again.splitlines()[-1] == report and complained == ""
    assert not (tmp_path / "unused" / SERVER_LOG).exists()


def test_flow_that_dies_shows_its_last_output():
    lines = []
    with pytest.raises(StageError, match=r"^The flow ended with status 1\. Its last output: .*PYTHONHASHSEED must be"):
        run_flow({}, {"PYTHONHASHSEED": "no number"}, lines.append)
    assert any("PYTHONHASHSEED" in line for line in lines)


@pytest.mark.slow
def test_flow_that_fails_names_the_error():
    with pytest.raises(StageError, match=r"^The flow ended with status 1\. \w+: .*no_such_parameter"):
        run_flow({"no_such_parameter": 1}, {}, lambda line: None)


@pytest.mark.slow
def test_run_says_why_its_server_does_not_start(start, tmp_path: Path):
    home = tmp_path / "home"
    database = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": "nonsense:///database"}
    _, complained = start(PREFECT_HOME=str(home), **database).communicate(timeout=PATIENCE_SECONDS)
    said = complained.strip().splitlines()[-1]
    assert said.startswith("flows.stages.StageError: Prefect's server ended with status 1. sqlalchemy.exc.NoSuchModule")
    assert said.endswith(f"Its log: {home / SERVER_LOG}")


@pytest.mark.slow
def test_run_says_that_the_settings_of_prefect_cannot_be_read(start, tmp_path: Path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "profiles.toml").write_text("active = [")
    _, complained = start(PREFECT_HOME=str(tmp_path / "home")).communicate(timeout=PATIENCE_SECONDS)
    said = complained.strip().splitlines()[-1]
    assert said.startswith("ValueError: Prefect must be able to read its settings. Received: Invalid value")


PROFILE = 'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "{}"\n'


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ("environment", "set in the environment; .*, or `unset PREFECT_API_URL` to run"),
        ("profile", "set in the Prefect profile `mine`; .*, or `prefect config unset PREFECT_API_URL` to run"),
        ("project", "set in a file that `prefect config view` names; .*, or remove it there to run"),
    ],
)
@pytest.mark.first_form
def test_run_says_where_the_server_that_does_not_answer_is_set(start, tmp_path: Path, place: str, words: str):
    address = f"http://127.0.0.1:{find_free_port()}/api"
    (tmp_path / "home").mkdir()
    if place == "profile":
        (tmp_path / "home" / "profiles.toml").write_text(PROFILE.format(address))
    if place == "project":
        (tmp_path / "prefect.toml").write_text(f'[api]\nurl = "{address}"\n')
    variable = {"PREFECT_API_URL": address} if place == "environment" else {}
    _, complained = start(PREFECT_HOME=str(tmp_path / "home"), **variable).communicate(timeout=PATIENCE_SECONDS)
    said = complained.strip().splitlines()[-1]
    rule = "`PREFECT_API_URL` must be the address of a running server"
    assert said.startswith(f"ValueError: {rule}. Received: {address}")
    assert re.search(words, said), said


@pytest.mark.slow
def test_run_uses_the_chosen_server(start, home: Path, tmp_path: Path):
    with running_server(tmp_path / "server.log", {"PREFECT_HOME": str(tmp_path / "other")}) as server:
        server.wait()
        said, _ = start(PREFECT_API_URL=server.address).communicate(timeout=PATIENCE_SECONDS)
        assert Path(said.splitlines()[-1]).is_file()
        with urllib.request.urlopen(
            urllib.request.Request(f"{server.address}/flow_runs/count", method="POST")
        ) as answer:
            assert answer.read() == b"1"


@pytest.mark.slow
def test_user_error_is_one_line(start, home: Path):
    said, complained = start(FAKE_REFUSES="records").communicate(timeout=PATIENCE_SECONDS)
    assert complained.strip().splitlines()[-1] == "ValueError: `batch_size` must be smaller. Received: 9. Try 8."
    assert "Traceback" not in said
    assert processes_of(home) == []


@pytest.mark.slow
def test_run_killed_by_9_leaves_no_process_and_can_be_run_again(start, home: Path, tiny_config: Path):
    run = start(FAKE_SLEEPS="pretrain")
    wait_until((tiny_config.parent / "runs" / "asleep").exists)
    assert len(processes_of(home)) == 4  # the run, its server, its flow, the stage
    os.kill(run.pid, signal.SIGKILL)
    run.communicate(timeout=PATIENCE_SECONDS)
    wait_until(lambda: processes_of(home) == [])
    said, _ = start().communicate(timeout=PATIENCE_SECONDS)
    assert Path(said.splitlines()[-1]).is_file()
    calls = (tiny_config.parent / "runs" / "calls.txt").read_text().split()[::2]
    assert calls == ["vocab", "records", "pretrain", "pretrain", "finetune", "report"]


@pytest.mark.slow
def test_collection_during_a_run_keeps_what_the_run_needs(start, tiny_config: Path):
    runs = tiny_config.parent / "runs"
    start().communicate(timeout=PATIENCE_SECONDS)
    for path in runs.rglob("*"):
        os.utime(path, (0, 0))
    tiny_config.write_text(tiny_config.read_text().replace("epochs: 1", "epochs: 3"))
    run = start(FAKE_SLEEPS="finetune")
    wait_until((runs / "asleep").exists)
    status, printed, _ = kbf("runs", "gc", runs, "--older-than", "30d", "--yes")
    assert status == 0 and printed.count(f"needed by process {run.pid} on ") == 3
    assert [stage for stage in STAGES if any((runs / stage).iterdir())] == [*STAGES[:3], "finetuning"]
    run.kill()
    run.communicate(timeout=PATIENCE_SECONDS)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_run_that_is_stopped_stops_the_stage_first(start, home: Path, tiny_config: Path, number: int):
    run = start(FAKE_SLEEPS="pretrain")
    wait_until((tiny_config.parent / "runs" / "asleep").exists)
    os.kill(run.pid, number)
    run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode != 0
    assert processes_of(home) == []
