"""Who may command the server of `kbf serve`: its own pages with the password, and only our flows."""

import asyncio
import gzip
import json
import os
import stat
from pathlib import Path

import pytest

from flows.own_server import LOGIN, POOL_TEMPLATE, WORKING_DIRECTORY, OwnPagesOnly, find_command
from flows.serving import read_password

PORT, FOLDER = 4200, "/runs/here"
OWN = "127.0.0.1:4200"
STEPS = [{WORKING_DIRECTORY: {"directory": FOLDER}}]


def ask(headers, path="/api/flows/filter", method="POST", body=b"{}", kind="http", folder=FOLDER):
    """Return the status of the answer, or "closed" for a WebSocket; its headers; and what reached the application."""
    reached, sent = [], []

    async def app(scope, receive, send):
        reached.append((await receive()).get("body") if scope["type"] == "http" else b"")
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "path": path, "method": method, "headers": [(n.encode(), v.encode()) for n, v in headers]}
    asyncio.run(OwnPagesOnly(app, PORT, folder)(scope, receive, send))
    headers = dict(sent[0].get("headers", ()))
    return sent[0].get("status", "closed"), headers, reached


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("host", OWN)], 200),
        ([("host", "localhost:4200"), ("origin", "http://localhost:4200")], 200),
        ([("host", "[::1]:4200")], 200),
        ([("host", "LOCALHOST:4200"), ("origin", "http://127.0.0.1:4200")], 200),
        ([("host", "rebound.example:4200")], 400),
        ([("host", "127.0.0.1")], 400),
        ([("host", "127.0.0.1:4201")], 400),
        ([("host", "127.0.0.1.example:4200")], 400),
        ([("host", "localhost.:4200")], 400),
        ([("host", ""), ("origin", "http://127.0.0.1:4200")], 400),
        ([], 400),
        ([("host", OWN), ("host", "rebound.example:4200")], 400),
        ([("host", OWN), ("origin", "http://evil.example")], 403),
        ([("host", OWN), ("origin", "null")], 403),
        ([("host", OWN), ("origin", "https://127.0.0.1:4200")], 403),
        ([("host", OWN), ("origin", "http://127.0.0.1:4201")], 403),
        ([("host", OWN), ("origin", "http://127.0.0.1:4200"), ("origin", "http://evil.example")], 403),
    ],
)
@pytest.mark.parametrize("kind", ["http", "websocket"])
@pytest.mark.parametrize("folder", [FOLDER, None])
def test_only_pages_of_this_server_are_answered(headers, status, kind, folder):
    found, answered, reached = ask(headers, kind=kind, folder=folder)
    assert bool(reached) == (status == 200)
    assert found == (status if kind == "http" or status == 200 else "closed")
    assert b"access-control-allow-origin" not in answered


def test_body_reaches_the_server_as_it_was_sent():
    body = json.dumps({"parameters": {"steps": 3}, "job_variables": {}}).encode()
    status, headers, reached = ask([("host", OWN)], "/api/deployments/1/create_flow_run", body=body)
    assert status == 200 and reached == [b"", body]  # the first asks for the deployment
    assert headers[b"x-frame-options"] == b"DENY"


def test_path_of_the_interface_alone_is_answered():
    assert [ask([("host", OWN)], path)[0] for path in ("/api", "/api/")] == [200, 200]


LATER = {"state": {"state_details": {"scheduled_time": "2999-01-01T00:00:00Z"}}}


@pytest.mark.parametrize(
    ("asked", "mistake"),
    [
        ({"parameters": {"train": "absent.tsv"}}, "A table must be a file. Received: {folder}/absent.tsv"),
        ({"parameters": {"overrides": ["records.shard=3"]}}, "`records.shard` is no known setting. Valid names:"),
        ({"parameters": {"steps": 1, "overrides": ["pretraining.warmup_steps=2"]}}, "warmup_steps=2, total_steps=1."),
        ({"parameters": {"train": "absent.tsv"}} | LATER, None),  # it may be there by then
        ({"parameters": {"config_path": "absent.yaml"}}, None),  # the schema refuses it
        ({}, None),
    ],
)
@pytest.mark.first_form
def test_run_with_a_mistake_is_refused_before_it_is_created(asked, mistake, tiny_config: Path):
    folder, created, answers = tiny_config.parent, [], []
    own = {"config_path": "tiny.yaml", "backend": "torch", "steps": 4}
    deployment = json.dumps({"entrypoint": "flows.pipeline.bert_pipeline", "parameters": own}).encode()

    async def app(scope, receive, send):
        if scope["method"] == "POST":
            created.append((await receive())["body"])
        is_known = (b"authorization", b"Basic QQ==") in scope["headers"]
        is_packed = any(name == b"accept-encoding" for name, _ in scope["headers"])
        await send({"type": "http.response.start", "status": 200 if is_known else 401, "headers": []})
        await send({"type": "http.response.body", "body": gzip.compress(deployment) if is_packed else deployment})

    async def receive():
        return {"type": "http.request", "body": json.dumps(asked).encode(), "more_body": False}

    async def send(message):
        answers.append(message)

    scope = {"type": "http", "path": "/api/deployments/1/create_flow_run", "method": "POST"}
    scope |= {"headers": [(b"host", OWN.encode()), (b"authorization", b"Basic QQ=="), (b"accept-encoding", b"gzip")]}
    asyncio.run(OwnPagesOnly(app, PORT, str(folder))(scope, receive, send))
    if mistake is None:
        assert answers[0]["status"] == 200 and created == [json.dumps(asked).encode()]
    else:
        detail = json.loads(answers[1]["body"])["detail"]
        assert (answers[0]["status"], created) == (409, [])
        assert mistake.format(folder=folder) in detail and "\n" not in detail


def test_login_page_is_served_and_no_page_may_frame_it():
    status, headers, reached = ask([("host", OWN)], LOGIN, "GET", b"")
    assert status == 200 and not reached
    assert b"frame-ancestors 'none'" in headers[b"content-security-policy"]


COMMAND = {"command": "touch X"}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "deployments/1/create_flow_run", {"job_variables": COMMAND}),
        ("POST", "deployments/1/create_flow_run", {"job_variables": {"env": {"LD_PRELOAD": "x.so"}}}),
        ("POST", "deployments/1/create_flow_run/bulk", [{}, {"job_variables": COMMAND}]),
        ("POST", "flow_runs/", {"flow_id": "1", "job_variables": COMMAND}),
        ("PATCH", "flow_runs/1", {"job_variables": {"working_dir": "/"}}),
        ("POST", "deployments/", {"job_variables": COMMAND}),
        ("POST", "deployments/", {"infra_overrides": COMMAND}),
        ("PATCH", "deployments/1", {"job_variables": COMMAND}),
        ("PATCH", "deployments/1", {"pull_steps": [{"prefect.deployments.steps.run_shell_script": {"script": "x"}}]}),
        ("PATCH", "deployments/1", {"pull_steps": [{WORKING_DIRECTORY: {"directory": "/elsewhere"}}]}),
        ("POST", "deployments/", {"entrypoint": "/tmp/x.py:flow", "pull_steps": STEPS}),
        ("POST", "deployments/", {"entrypoint": "os.system", "pull_steps": STEPS}),
        ("POST", "deployments/", {"entrypoint": "flows.pipeline.bert_pipeline", "path": "/tmp"}),
        ("PATCH", "deployments/1", {"storage_document_id": "1"}),
        ("POST", "work_pools/", {"name": "x", "base_job_template": {"job_configuration": {"command": "touch X"}}}),
        ("PATCH", "work_pools/local", {"base_job_template": {"variables": {}}}),
        ("POST", "automations/", {"actions": [{"type": "run-deployment", "job_variables": COMMAND}]}),
        ("PUT", "automations/1", {"actions": [{"type": "run-deployment", "job_variables": COMMAND}]}),
    ],
)
def test_nobody_changes_what_a_run_executes(method, path, body):
    status, headers, reached = ask([("host", OWN)], f"/api/{path}", method, json.dumps(body).encode())
    assert status == 403 and not reached
    assert "must be" in find_command(json.dumps(body).encode(), f"/api/{path}", FOLDER) or "may only" in find_command(
        json.dumps(body).encode(), f"/api/{path}", FOLDER
    )
    assert ask([("host", OWN)], f"/api/{path}", method, b'{"job_variables": ')[0] == 403  # not JSON


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("deployments/", {"entrypoint": "flows.pipeline.bert_pipeline", "pull_steps": STEPS, "job_variables": {}}),
        ("deployments/1", {"paused": True}),
        ("work_pools/", {"name": "local", "base_job_template": POOL_TEMPLATE}),
        ("work_pools/local", {"concurrency_limit": 2}),
        ("flow_runs/", {"flow_id": "1", "job_variables": None, "context": {"path": "/x"}}),
        ("automations/", {"actions": [{"type": "change-flow-run-state", "state": "CRASHED"}]}),
    ],
)
def test_what_kbf_serve_and_its_pages_send_is_taken(path, body):
    assert find_command(json.dumps(body).encode(), f"/api/{path}", FOLDER) is None


def test_password_is_made_once_for_this_user_alone(tmp_path: Path):
    path = tmp_path / "password"
    before = os.umask(0)
    try:
        password = read_password(path)
    finally:
        os.umask(before)
    assert len(password) > 40 and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_password(path) == password == path.read_text().strip()
    assert read_password(tmp_path / "other") != password


@pytest.mark.parametrize("fault", ["readable", "empty", "short", "link"])
def test_password_file_that_others_could_know_is_refused(tmp_path: Path, fault: str):
    path = tmp_path / "password"
    read_password(path)
    if fault == "readable":
        path.chmod(0o640)
    elif fault == "link":
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    else:
        path.write_text("" if fault == "empty" else "admin:1234\n")
    with pytest.raises(ValueError, match="must be yours, of mode 0600.*Delete it"):
        read_password(path)
