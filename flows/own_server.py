"""Run Prefect's server so that only this machine and its own pages command it: `python -m flows.own_server PORT`.

Prefect's server answers any page of any origin and any `Host`, and whoever may start a run may also name the command
that the worker executes (`job_variables`). This one refuses requests that another site's page sends, or that reach this
machine under another name (DNS rebinding), and, for `kbf serve`, whatever would run something else than our flows. It
also refuses a run whose settings or files are wrong, in one line: it would fail, but only once it is its turn.
"""

import asyncio
import base64
import hashlib
import json
import os
import re
import shlex
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from datetime import datetime
from functools import partial
from typing import Any

from flows.child import GUARD, PLAIN_OUTPUT
from flows.guard import ANY_PARENT
from keras_bert_flow.console import interrupts

HOST = "127.0.0.1"
LOGIN = "/kbf/login"
SERVER_PASSWORD, CLIENT_PASSWORD = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"  # Prefect's names
MAX_BODY_BYTES = 16 << 20
CHECK_SECONDS = 30.0  # a run whose files take longer to read is created, and checked when it begins
SOON_SECONDS = 60.0  # files of a run that is scheduled for later may not exist yet
# The command by which a worker of this machine starts a run: Prefect's own, made to end with the worker. Without -P,
# modules in the folder of the runs would shadow installed ones.
ENGINE = (*GUARD, ANY_PARENT, sys.executable, "-P", "-m", "prefect.engine")
# Without `{{ command }}` and the like, no variable of a run reaches its process. There must be no `env` either, since
# Prefect merges a run's `env` into one that is given here.
POOL_TEMPLATE: dict[str, Any] = {
    "job_configuration": {"command": shlex.join(ENGINE), "stream_output": True},
    "variables": {"type": "object", "properties": {}, "additionalProperties": False},
}
NEW_RUN = re.compile(r"/api/deployments/[0-9a-fA-F-]+/create_flow_run/?")
FLOW = re.compile(r"flows(\.\w+)+")
WORKING_DIRECTORY = "prefect.deployments.steps.set_working_directory"
_NOT_COMMANDS = ("logs", "events", "artifacts", "task_runs")  # routes with large bodies that start nothing
# Prefect's UI keeps the password under this name, in Base64.
_SCRIPT = """
const note = document.querySelector("p"), field = document.querySelector("input");
async function enter(password) {
  let encoded;
  try { encoded = btoa(password); } catch { note.textContent = "The password must be Latin-1."; return; }
  const answer = await fetch("/api/admin/version", {headers: {Authorization: "Basic " + encoded}});
  if (!answer.ok) { note.textContent = "This is not the password of this server."; return; }
  localStorage.setItem("prefect-password", encoded);
  location.replace("/");
}
document.querySelector("form").addEventListener("submit", event => { event.preventDefault(); enter(field.value); });
const given = decodeURIComponent(location.hash.slice(1));
history.replaceState(null, "", location.pathname);
if (given) enter(given);
"""
_PAGE = f"""<!doctype html><meta charset="utf-8"><title>kbf serve</title>
<form><label>Password of this server: <input type="password" autofocus></label> <button>Log in</button></form>
<p>It is in the file that <code>kbf serve</code> names.</p><script>{_SCRIPT}</script>
"""
_POLICY = (
    f"default-src 'none'; script-src 'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'; "
    "connect-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
)
# A page of another site must not lay ours under its own buttons.
_HEADERS = (
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


def list_hosts(port: int) -> tuple[str, ...]:
    """Return the values of `Host` by which this machine itself reaches a server of its own."""
    return tuple(f"{name}:{port}" for name in (HOST, "localhost", "[::1]"))


class OwnPagesOnly:
    """An ASGI application in front of Prefect's.

    Args:
        app: Prefect's application.
        port: the port on which it is served.
        folder: the only working directory of deployments; None if anything may be deployed.
    """

    def __init__(self, app: Application, port: int, folder: str | None = None):
        self._app, self._folder = app, folder
        self._hosts = list_hosts(port)
        self._origins = [f"http://{host}" for host in self._hosts]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return await self._app(scope, receive, send)
        if refusal := self._find_stranger(scope["headers"]):
            return await _refuse(scope, send, *refusal)
        if scope["type"] == "http":
            send = partial(_send_guarded, send)
            if scope["path"] == LOGIN:
                return await _answer(send, 200, _PAGE, "text/html; charset=utf-8", policy=_POLICY)
            parts = scope["path"].split("/")
            writes = scope["method"] in ("POST", "PUT", "PATCH") and parts[1:2] == ["api"]
            if self._folder is not None and writes and not set(parts[2:3]) & {*_NOT_COMMANDS}:
                body = await _read_body(receive)
                if body is None:
                    return await _refuse(scope, send, 413, f"A body must have at most {MAX_BODY_BYTES:,} bytes.")
                if reason := find_command(body, scope["path"], self._folder):
                    return await _refuse(scope, send, 403, reason)
                if reason := await find_mistake(self._app, scope, body, self._folder):
                    return await _refuse(scope, send, 409, reason)
                receive = partial(_receive_again, [body], receive)
        return await self._app(scope, receive, send)

    def _find_stranger(self, headers: list[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        """Return status and reason of the refusal if another machine or another site's page asks, else None."""
        hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        origins = [value.decode("latin-1").lower() for name, value in headers if name == b"origin"]
        if len(hosts) != 1 or hosts[0] not in self._hosts:
            return 400, f"`Host` must be {self._hosts[0]}. Received: {', '.join(hosts) or 'none'}."
        if not set(origins) <= set(self._origins):
            return 403, f"`Origin` must be {self._origins[0]}. Received: {', '.join(origins)}."
        return None


def find_command(body: bytes, path: str, folder: str) -> str | None:
    """Return why a request would let a worker run something else than our flows; None if it would not.

    Args:
        body: JSON, as Prefect reads it.
        path: of the request, such as /api/deployments/.
        folder: the only working directory of deployments.
    """
    try:
        document = json.loads(body) if body else None
    except (ValueError, RecursionError):
        return "The body must be JSON."
    for name, value in _walk(document):
        if name in ("job_variables", "infra_overrides") and value:
            return (
                f"`{name}` must be empty: `kbf serve` fixes what a run executes. Use a server of your own for others."
            )
        if name == "base_job_template" and value and value != POOL_TEMPLATE:
            return "`base_job_template` must be that of `kbf serve`, which fixes what a run executes."
    if path.split("/")[2:3] != ["deployments"] or not isinstance(document, dict):
        return None
    allowed = {WORKING_DIRECTORY: {"directory": folder}}
    if any(step != allowed for step in document.get("pull_steps") or ()):
        return f"`pull_steps` may only set the working directory of `kbf serve`, {folder}."
    if (flow := document.get("entrypoint")) and not (isinstance(flow, str) and FLOW.fullmatch(flow)):
        return "`entrypoint` must be a flow of keras-bert-flow. Deploy others on a server of your own."
    for name in ("path", "storage_document_id", "infrastructure_document_id"):
        if document.get(name):
            return f"`{name}` must be empty: `kbf serve` runs installed flows only."
    return None


async def find_mistake(app: Application, scope: Scope, body: bytes, folder: str) -> str | None:
    """Return what is wrong with the settings or files of a run that a request would create now; None if nothing is.

    Args:
        app: Prefect's application, which knows the deployment.
        scope: of the request; whether it may ask is for the application to say.
        body: of the request, as `find_command` has accepted it.
        folder: working directory of runs.
    """
    if scope["method"] != "POST" or not NEW_RUN.fullmatch(scope["path"]):
        return None
    asked = json.loads(body) if body else {}
    deployment = await _read_deployment(app, scope)
    if deployment is None or not isinstance(asked, dict) or _is_for_later(asked):
        return None
    own, given = deployment.get("parameters") or {}, asked.get("parameters") or {}
    function = str(deployment.get("entrypoint")).rpartition(".")[2]
    command = (*GUARD, str(os.getpid()), sys.executable, "-P", "-m", "flows.parameters", function)
    try:
        child = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env=os.environ | PLAIN_OUTPUT, stdin=PIPE, stdout=PIPE
        )
    except OSError:  # no memory or no process left: the run will say so
        return None
    try:
        said, _ = await asyncio.wait_for(child.communicate(json.dumps([own, given]).encode()), CHECK_SECONDS)
    except TimeoutError:
        return None
    finally:
        if child.returncode is None:
            child.kill()
    return said.decode("utf-8", "replace").strip() if child.returncode == interrupts.USER_ERROR else None


async def _read_deployment(app: Application, scope: Scope) -> dict[str, Any] | None:
    """Ask the application for the deployment of a request, with the password of that request."""
    path = scope["path"].partition("/create_flow_run")[0]
    headers = [(name, value) for name, value in scope["headers"] if name in (b"host", b"authorization")]
    inner = {**scope, "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "headers": headers}
    status, content = 0, b""

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def keep(message: MutableMapping[str, Any]) -> None:
        nonlocal status, content
        status, content = message.get("status", status), content + message.get("body", b"")

    await app(inner, receive, keep)
    return json.loads(content) if status == 200 and content else None


def _is_for_later(asked: dict[str, Any]) -> bool:
    """Return whether a request schedules its run for later."""
    try:
        at = datetime.fromisoformat(asked["state"]["state_details"]["scheduled_time"])
    except (KeyError, TypeError, ValueError):
        return False
    return at.tzinfo is not None and at.timestamp() > time.time() + SOON_SECONDS


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every key of a JSON document with its value."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            yield from found.items()
            waiting += found.values()
        elif isinstance(found, list):
            waiting += found


async def _read_body(receive: Receive) -> bytes | None:
    """Return the body of a request; None if it is too long."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
        if not message.get("more_body"):
            return body


async def _receive_again(read: list[bytes], receive: Receive) -> MutableMapping[str, Any]:
    return {"type": "http.request", "body": read.pop(), "more_body": False} if read else await receive()


async def _send_guarded(send: Send, message: MutableMapping[str, Any]) -> None:
    if message["type"] == "http.response.start":
        message["headers"] = [*message.get("headers", ()), *_HEADERS]
    await send(message)


async def _refuse(scope: Scope, send: Send, status: int, reason: str) -> None:
    if scope["type"] == "websocket":  # before it is accepted: the handshake is answered with 403
        await send({"type": "websocket.close", "code": 1008, "reason": reason})
        return
    await _answer(send, status, json.dumps({"detail": reason, "exception_message": reason}), "application/json")


async def _answer(send: Send, status: int, text: str, kind: str, policy: str = "default-src 'none'") -> None:
    content = text.encode()
    headers = [(b"content-type", kind.encode()), (b"content-length", str(len(content)).encode())]
    headers += [(b"content-security-policy", policy.encode()), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": content})


def main(port: int, is_served: bool) -> None:
    """Serve until a signal arrives, as `prefect server start` does."""
    origins = ",".join(f"http://{host}" for host in list_hosts(port))
    os.environ["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"] = origins  # read at the import
    import uvicorn
    from prefect.server.api.server import create_app
    from prefect.settings import get_current_settings

    app = OwnPagesOnly(create_app(final=True), port, os.getcwd() if is_served else None)
    settings = get_current_settings().server
    uvicorn.run(
        app,
        host=HOST,
        port=port,
        timeout_keep_alive=settings.api.keepalive_timeout,
        log_level=settings.logging_level.lower(),
        server_header=False,
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), "--served" in sys.argv[2:])
