"""`kbf serve`, used from a real browser; its server and worker, killed."""

import base64
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

from flows import deployments
from flows.child import start_child
from flows.deployments import DEAD_RUNS, end_silent_runs
from flows.server import check_port, find_free_port
from flows.serving import PASSWORD_FILE, Kept
from flows.stages import StageError
from keras_bert_flow.results.manifest import read_costs
from tests.browsers import chromium
from tests.flows.conftest import ROOT
from tests.patience import PATIENCE_SECONDS

HEARTBEAT_SECONDS = 30  # the least that Prefect takes
SERVE = (sys.executable, "-m", "keras_bert_flow", "serve")


@dataclass(frozen=True)
class Served:
    process: subprocess.Popen
    port: int
    folder: Path
    client: SyncPrefectClient

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def find_child(self, words: str) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        return next(child for child in children if words in " ".join(child.cmdline()))

    @property
    def login(self) -> str:
        (link,) = re.findall(r"http://\S+/kbf/login#\S+", (self.folder / "serve.log").read_text())
        return link

    def run_states(self) -> dict[str, str]:
        return {run.name: run.state_name for run in self.client.read_flow_runs()}


@pytest.fixture
def served(tmp_path: Path, tiny_config: Path) -> Iterator[Served]:
    with serving(tmp_path) as found:
        yield found
        found.process.send_signal(signal.SIGINT)
        assert found.process.wait(PATIENCE_SECONDS) == 0
    assert list_living(tmp_path) == []


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    port = next(port for port in iter(find_free_port, None) if port < 65000 and _is_free(port + 1))
    settings = {"PREFECT_HOME": str(folder / "prefect"), "PREFECT_WORKER_QUERY_SECONDS": "1", "PYTHONPATH": str(ROOT)}
    settings["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] = str(HEARTBEAT_SECONDS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT")} | settings
    with open(folder / "serve.log", "wb") as log:
        command = (*SERVE, "tiny.yaml", "--port", str(port))
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
    try:
        wait_for(lambda: "Ctrl-C" in (folder / "serve.log").read_text() or process.poll() is not None)
        assert process.poll() is None, (folder / "serve.log").read_text()
        password = (folder / "prefect" / PASSWORD_FILE).read_text().strip()
        with (
            temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api", PREFECT_API_AUTH_STRING: password}),
            get_client(sync_client=True) as client,
        ):
            yield Served(process, port, folder, client)
    finally:
        process.kill()


def list_living(folder: Path) -> list[psutil.Process]:
    return [found for found in psutil.process_iter() if _lives_in(found, folder)]


def _is_free(port: int) -> bool:
    try:
        check_port(port)
    except ValueError:
        return False
    return True


def _lives_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.environ().get("PREFECT_HOME") == str(folder / "prefect")
    except psutil.Error:
        return False


def wait_for(holds: Callable[[], object], seconds: float = PATIENCE_SECONDS) -> object:
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    return found


@pytest.fixture
def browser(tmp_path: Path) -> Iterator:
    with chromium("window-size=1400,2000") as driver:
        yield driver


def text_of(browser) -> str:
    return browser.find_element("tag name", "body").text


def log_in(browser, served: Served) -> None:
    browser.get(served.login)
    wait_for(lambda: "/kbf/login" not in browser.current_url)


def open_form(browser, served: Served, deployment: str) -> None:
    found = served.client.read_deployment_by_name(deployment)
    browser.get(f"{served.url}/deployments/deployment/{found.id}/run")
    wait_for(lambda: "Budget: steps of pre-training" in text_of(browser))


def fill_in(browser, title: str, value: str) -> None:
    """Put a value in the place of what a field has."""
    field = f"//label[contains(., '{title}')]/ancestor::div[contains(@class, 'schema-form-property')][1]"
    entry = browser.find_element("xpath", f"{field}//*[self::input or self::textarea]")
    entry.send_keys("\ue009a\ue000", value)  # Control and A, then no key held


def click(browser, label: str) -> None:
    wait_for(lambda: browser.find_elements("xpath", f"//button[contains(., '{label}')]"))
    browser.find_elements("xpath", f"//button[contains(., '{label}')]")[-1].click()


def submit(browser, served: Served) -> None:
    """Submit until there is a run: a click while the page still validates what was typed does nothing."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not served.run_states():
        assert time.monotonic() < deadline
        click(browser, "Submit")
        with suppress(AssertionError):
            wait_for(served.run_states, 10.0)


@pytest.mark.slow
def test_run_is_started_watched_and_read_in_a_browser(served: Served, browser):
    log_in(browser, served)
    open_form(browser, served, "bert-pipeline/tiny")
    page = text_of(browser)
    assert all(title in page for title in ("Text: files, folders and globs", "Kind of task", "Keras backend"))
    fill_in(browser, "Budget", "0")
    click(browser, "Submit")
    wait_for(lambda: "minimum of 1" in text_of(browser))
    assert served.run_states() == {}
    fill_in(browser, "Budget", "6")
    submit(browser, served)
    wait_for(lambda: list(served.run_states().values()) == ["Completed"], 2 * PATIENCE_SECONDS)
    (run,) = served.client.read_flow_runs()
    assert run.name == "tiny, tiny, 6 steps, jax"
    artifacts = {artifact.key: artifact for artifact in served.client.read_artifacts()}
    assert artifacts.keys() >= {"report", "report-page", "stages", "progress-pretraining"}
    assert artifacts["progress-pretraining"].data == 100.0
    browser.get(f"{served.url}/artifacts/artifact/{artifacts['report'].id}")
    wait_for(lambda: "By macro-F1" in text_of(browser) or "By accuracy" in text_of(browser))
    image = wait_for(lambda: browser.find_elements("css selector", "img[src^='data:image/svg']"))[0]
    assert wait_for(lambda: browser.execute_script("return arguments[0].naturalWidth", image)) > 100
    (report,) = served.folder.glob("runs/evaluation/*/report.html")
    browser.get(browser.find_element("link text", "The whole report").get_attribute("href"))
    wait_for(lambda: browser.title == "tiny")
    for hidden in (report.with_name("metrics.json"), served.folder / "tiny.yaml", Path("/etc/passwd")):
        with pytest.raises(HTTPError, match="404"):
            urlopen(f"http://127.0.0.1:{served.port + 1}{hidden}", timeout=PATIENCE_SECONDS)


@pytest.mark.slow
def test_run_is_cancelled_in_a_browser_at_a_checkpoint(served: Served, browser):
    found = served.client.read_deployment_by_name("bert-pipeline/tiny")
    run = served.client.create_flow_run_from_deployment(found.id, parameters={"backend": "torch", "steps": 1_000_000})
    (log,) = wait_for(lambda: list(served.folder.glob("runs/pretraining/.*.work/log.jsonl")), 2 * PATIENCE_SECONDS)
    log_in(browser, served)
    browser.get(f"{served.url}/runs/flow-run/{run.id}")
    wait_for(lambda: run.name in text_of(browser))
    click(browser, "Cancel")
    click(browser, "Confirm")
    wait_for(lambda: served.client.read_flow_run(run.id).state.is_final())
    assert served.client.read_flow_run(run.id).state.is_cancelled()
    wait_for(lambda: [child for child in list_living(served.folder) if "pretrain" in child.cmdline()] == [])
    assert list(log.parent.glob("checkpoints/step-*"))


@pytest.mark.slow
def test_what_is_killed_is_started_again_and_the_run_ends(served: Served):
    found = served.client.read_deployment_by_name("bert-pipeline/tiny")
    served.find_child("own_server").kill()
    log = served.folder / "serve.log"
    wait_for(lambda: "The server ended" in log.read_text())
    wait_for(lambda: _answers(served.client))
    served.find_child("worker start").kill()
    wait_for(lambda: "The worker ended" in log.read_text())
    served.client.create_flow_run_from_deployment(found.id, parameters={"backend": "torch"})
    wait_for(lambda: list(served.run_states().values()) == ["Completed"], 2 * PATIENCE_SECONDS)


@contextmanager
def foreign_page(script: str) -> Iterator[str]:
    """Serve a page with a script from another port, which is another origin."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(f"<script>{script}</script>".encode())

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.slow
def test_page_of_another_origin_starts_nothing(served: Served, browser):
    found = served.client.read_deployment_by_name("bert-pipeline/tiny")
    path = f"/api/deployments/{found.id}/create_flow_run"
    log_in(browser, served)  # whoever reads the foreign page may have logged in here
    request = """{method: "POST", mode: MODE, headers: {"Content-Type": TYPE}, body: '{"job_variables": {}}'}"""
    for mode, kind in (("cors", "application/json"), ("no-cors", "text/plain")):
        sent = request.replace("MODE", f'"{mode}"').replace("TYPE", f'"{kind}"')
        script = f'fetch("{served.url}{path}", {sent}).finally(() => {{ document.title = "sent"; }}).catch(() => 0);'
        with foreign_page(script) as address:
            browser.get(address)
            wait_for(lambda: browser.title == "sent")
    password = base64.b64encode((served.folder / "prefect" / PASSWORD_FILE).read_bytes().strip()).decode()
    headers = {"Authorization": f"Basic {password}", "Content-Type": "application/json"}
    command = {"command": f"touch {served.folder / 'made'}"}
    for body, other, status in (
        ({}, {"Host": f"rebound.example:{served.port}"}, 400),
        ({}, {"Origin": "http://evil.example"}, 403),
        ({}, {"Authorization": "Basic YWRtaW46YWRtaW4="}, 401),
        ({"job_variables": command}, {}, 403),
    ):
        asked = Request(f"{served.url}{path}", json.dumps(body).encode(), headers | other, method="POST")
        with pytest.raises(HTTPError, match=str(status)):
            urlopen(asked, timeout=PATIENCE_SECONDS)
    assert served.run_states() == {}


def end_silent_runs_soon(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have silent runs marked after 90 s, not 9 minutes."""
    for automation in served.client.read_automations_by_name(DEAD_RUNS):
        served.client.delete_automation(automation.id)
    monkeypatch.setattr(deployments, "DEAD_AFTER", timedelta(seconds=3 * HEARTBEAT_SECONDS))
    end_silent_runs(served.client)


@pytest.mark.slow
def test_run_whose_processes_hang_does_not_stay_running(served: Served, monkeypatch: pytest.MonkeyPatch):
    end_silent_runs_soon(served, monkeypatch)
    found = served.client.read_deployment_by_name("bert-pipeline/tiny")
    run = served.client.create_flow_run_from_deployment(found.id, parameters={"backend": "torch", "steps": 1_000_000})
    wait_for(lambda: list(served.folder.glob("runs/pretraining/.*.work/log.jsonl")), 2 * PATIENCE_SECONDS)
    worker = served.find_child("worker start")
    for process in worker.children(recursive=True):
        process.suspend()  # as where its machine has no memory left
    wait_for(lambda: served.client.read_flow_run(run.id).state.is_crashed(), 2 * PATIENCE_SECONDS)
    assert "No sign of life for 90 s" in served.client.read_flow_run(run.id).state.message
    worker.kill()  # the others end with it


@pytest.mark.slow
def test_run_whose_worker_is_killed_crashes_at_once(served: Served):
    found = served.client.read_deployment_by_name("bert-pipeline/tiny")
    run = served.client.create_flow_run_from_deployment(found.id, parameters={"backend": "torch", "steps": 1_000_000})
    wait_for(lambda: list(served.folder.glob("runs/pretraining/.*.work/log.jsonl")), 2 * PATIENCE_SECONDS)
    served.find_child("worker start").kill()
    wait_for(lambda: served.client.read_flow_run(run.id).state.is_crashed())
    found = served.client.read_flow_run(run.id)  # its name is its own now
    assert "training goes on from its checkpoint" in found.state.message
    assert f"The run {found.name} was left behind" in (served.folder / "serve.log").read_text()


@pytest.mark.slow
def test_nothing_outlives_what_is_killed_and_the_same_run_completes_after(tmp_path: Path, tiny_config: Path):
    parameters = {"backend": "torch", "steps": 300}
    with serving(tmp_path) as first:
        found = first.client.read_deployment_by_name("bert-pipeline/tiny")
        killed = first.client.create_flow_run_from_deployment(found.id, parameters=parameters)
        (log,) = wait_for(lambda: list(tmp_path.glob("runs/pretraining/.*.work/log.jsonl")), 2 * PATIENCE_SECONDS)
        first.process.kill()
        wait_for(lambda: not list_living(tmp_path))
    key = log.parent.name.removeprefix(".").removesuffix(".work")
    with serving(tmp_path) as second:
        assert second.client.read_flow_run(killed.id).state.is_crashed()  # it holds the place of the next no more
        run = second.client.create_flow_run_from_deployment(found.id, parameters=parameters)
        wait_for(lambda: second.client.read_flow_run(run.id).state.is_final(), 2 * PATIENCE_SECONDS)
        assert second.client.read_flow_run(run.id).state.is_completed()
    assert [path.parent.name for path in tmp_path.glob("runs/pretraining/*/manifest.json")] == [key]
    assert len(read_costs(tmp_path / "runs" / "pretraining" / key)) == 1  # what was killed could note nothing


def test_child_that_ends_again_and_again_is_given_up(tmp_path: Path):
    said = []
    kept = Kept("worker", lambda: start_child(("false",), {}, subprocess.DEVNULL), tmp_path / "log")
    with pytest.raises(StageError, match="The worker ended 5 times in 120 s"):
        for _ in range(10):
            kept.child.wait(PATIENCE_SECONDS)
            kept.check(said.append)
    assert len(said) == 4 and said[0].startswith("The worker ended with status 1; it is started again.")


def _answers(client: SyncPrefectClient) -> bool:
    return client.api_healthcheck() is None


def test_taken_port_is_refused_before_anything_starts(tmp_path: Path, tiny_config: Path):
    port = find_free_port()

    with socket.create_server(("127.0.0.1", port)):
        command = (*SERVE, "tiny.yaml", "--port", str(port))
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert run.returncode == 2
    assert run.stderr.startswith(f"kbf: The port must be free. Received: {port}")
