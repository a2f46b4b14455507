"""The deployments, as files and on a real server with a real worker."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from prefect import Flow
from prefect.utilities.importtools import import_object

from flows.child import start_child, stop_child
from flows.parameters import resolve_config, write_config
from flows.server import WATCHED_LOGS, running_server
from tests.flows.conftest import ROOT
from tests.patience import PATIENCE_SECONDS

PREFECT_YAML = ROOT / "flows" / "prefect.yaml"
PREFECT = (sys.executable, "-m", "prefect")
FLOWS = ["preprocess", "pretrain", "finetune", "evaluate", "bert-pipeline"]


def test_each_deployment_names_a_flow():
    deployments = yaml.safe_load(PREFECT_YAML.read_text())["deployments"]
    flows = [import_object(deployment["entrypoint"]) for deployment in deployments]
    assert all(isinstance(flow, Flow) for flow in flows)
    assert [flow.name for flow in flows] == FLOWS
    assert {(deployment["name"], deployment["work_pool"]["name"]) for deployment in deployments} == {("local", "local")}
    assert all("schedules" in deployment for deployment in deployments)  # without it, a terminal is asked for some


def test_deployments_hold_no_absolute_path():
    assert not [word for word in PREFECT_YAML.read_text().split() if word.strip("'\"").startswith("/")]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Run a server and a worker with a home of their own, deploy everything; yield the environment of a client.

    The worker starts elsewhere than in the checkout, so that only the deployment can lead it there.
    """
    monkeypatch.chdir(tmp_path)
    settings = WATCHED_LOGS | {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_WORKER_QUERY_SECONDS": "1"}
    with running_server(tmp_path / "server.log", settings) as server:
        server.wait()
        settings["PREFECT_API_URL"] = server.address
        prefect(settings, "work-pool", "create", "local", "--type", "process")
        deployed = prefect(settings, "deploy", "--all", "--prefect-file", "flows/prefect.yaml")
        assert all(f"'{flow}/local' successfully created" in " ".join(deployed.split()) for flow in FLOWS)
        with open(tmp_path / "worker.log", "wb") as log:
            worker = start_child((*PREFECT, "worker", "start", "--pool", "local"), settings, log)
        try:
            yield settings
        finally:
            stop_child(worker, 30)


def prefect(settings: dict[str, str], *arguments: str, status: int = 0, timeout: float = PATIENCE_SECONDS) -> str:
    """Run a command of Prefect from the root of the checkout and return what it says."""
    run = subprocess.run(
        (*PREFECT, *arguments), cwd=ROOT, env=os.environ | settings, capture_output=True, text=True, timeout=timeout
    )
    assert run.returncode == status, run.stdout + run.stderr
    return run.stdout


@pytest.mark.slow
def test_worker_runs_the_pipeline(environment: dict[str, str], tiny_config: Path, tmp_path: Path):
    config = write_config(resolve_config(str(tiny_config)))  # absolute paths: the worker runs in the checkout
    run = ("deployment", "run", "bert-pipeline/local", "-p", f"config_path={config}", "--watch")
    prefect(environment, *run)
    (report,) = tmp_path.glob("runs/evaluation/*/report.html")
    before = report.stat().st_mtime_ns
    prefect(environment, *run)
    assert report.stat().st_mtime_ns == before
    artifact = json.loads(prefect(environment, "artifact", "ls", "--output", "json"))
    bars = {f"progress-{stage}" for stage in ("vocabulary", "records", "pretraining", "finetuning", "evaluation")}
    assert {item["key"] for item in artifact} == {"report", "stages"} | bars


@pytest.mark.slow
def test_worker_shows_what_the_user_has_to_mend(environment: dict[str, str]):
    run = ("deployment", "run", "bert-pipeline/local", "-p", "config_path=absent.yaml", "--watch")
    said = " ".join(prefect(environment, *run, "--flow-run-name", "mine", status=1).split())
    assert "must be a file. Received: absent.yaml." in said and "Traceback" not in said
    address, kind = f"{environment['PREFECT_API_URL']}/flow_runs/filter", {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address, b"{}", kind), timeout=PATIENCE_SECONDS) as answer:
        (flow_run,) = json.load(answer)
    assert "The configuration must be a file. Received: absent.yaml." in flow_run["state"]["message"]
    assert flow_run["name"] == "mine"
