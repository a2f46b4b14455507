"""Run a Prefect server for one run, check servers and ports, and escape log messages.

Prefect's own temporary server outlives a run that is killed with SIGKILL; a child of ours does not (see `guard.py`).
"""

import base64
import logging
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any

from flows.child import ended_on_leaving, start_child, stop_child
from flows.own_server import HOST
from flows.stages import StageError
from keras_bert_flow.console.terminal import JOINERS, escape_controls, hide_credentials
from keras_bert_flow.stores.store import NoAnswerError, answer_within

START_SECONDS = 300.0  # an idle machine takes 4 s, a busy one minutes; the first start also creates the database
STOP_SECONDS = 10.0
POLL_SECONDS = 0.05
ANSWER_SECONDS = 10.0
SERVER_SETTINGS = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_DATABASE_TIMEOUT": "60",  # another server may briefly lock the same SQLite file
    "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
}
# With these, `prefect deployment run --watch` prints the log of a run, and thus its error; by default only its events.
WATCHED_LOGS = {
    "PREFECT_SERVER_LOGS_STREAM_OUT_ENABLED": "true",
    "PREFECT_SERVER_LOGS_STREAM_PUBLISHING_ENABLED": "true",
}
# Blocks are for the UI, which a run's own server lacks; registering them would take seconds at the first start.
RUN_SETTINGS = SERVER_SETTINGS | {
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    "PREFECT_SERVER_UI_ENABLED": "false",
}
REPORTS_URL, REPORTS_FOLDERS = "KBF_REPORTS_URL", "KBF_REPORTS_FOLDERS"  # set by `kbf serve`, which serves reports
_ERROR = re.compile(r"[\w.]+(Error|Exception|Exit): ")


@dataclass
class StartingServer:
    """A server that may not answer yet.

    Attributes:
        address: URL of its API.
    """

    address: str
    process: subprocess.Popen
    log_path: Path
    _deadline: float = field(init=False, default_factory=lambda: time.monotonic() + START_SECONDS)
    _has_answered: bool = field(init=False, default=False)

    def watch(self) -> bool:
        """Return whether it has answered.

        Raises:
            StageError: it ended without answering, or did not answer in time; the message names its log.
        """
        self._has_answered = self._has_answered or answers(self.address)
        status = self.process.poll()
        if self._has_answered or (status is None and time.monotonic() < self._deadline):
            return self._has_answered
        how = f"did not answer within {START_SECONDS:.0f} s" if status is None else f"ended with status {status}"
        lines = [line.strip() for line in self.log_path.read_text("utf-8", "replace").splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.match(line)]  # more lines may follow the last one
        last = (errors or lines or ["It printed nothing."])[-1]
        raise StageError(f"Prefect's server {how}. {last} Its log: {self.log_path}")

    def wait(self) -> None:
        """Wait until it answers; raises as `watch` does."""
        while not self.watch():
            time.sleep(POLL_SECONDS)


@contextmanager
def running_server(log_path: Path, environment: dict[str, str] | None = None) -> Iterator[StartingServer]:
    """Start a server on a free localhost port, yield it before it answers, and stop it at the end of the block.

    Args:
        log_path: the server's log, which is emptied.
        environment: variables to add to ours.
    """
    port = find_free_port()
    log_path.parent.mkdir(parents=True, exist_ok=True)
    log_path.write_bytes(b"")  # then appended to, as another server with the same home may do too
    with open(log_path, "ab") as log:
        server = start_child(server_command(port), RUN_SETTINGS | (environment or {}), log)
    try:
        with ended_on_leaving(lambda: server, STOP_SECONDS):
            yield StartingServer(f"http://{HOST}:{port}/api", server, log_path)
    finally:
        stop_child(server, STOP_SECONDS)


def server_command(port: int, ui: bool = False) -> tuple[str, ...]:
    """Return the command of a server that only this machine can reach.

    Args:
        port: a free port.
        ui: whether it has a UI, and runs only our flows, as in `kbf serve`.
    """
    command = (sys.executable, "-m", "flows.own_server", str(port))
    return (*command, "--served") if ui else command


def server_settings(port: int) -> dict[str, str]:
    """Return the settings of a server with a UI, which would otherwise look for the API at port 4200.

    Promotional content is switched off, as it covers the button that submits a form.
    """
    address = f"http://{HOST}:{port}/api"
    page = {"PREFECT_SERVER_UI_API_URL": address, "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false"}
    page |= {"PREFECT_SERVER_UI_ENABLED": "true"}
    return SERVER_SETTINGS | WATCHED_LOGS | page | {"PREFECT_API_URL": address}


def find_chosen_server() -> tuple[str | None, Path]:
    """Return the address of the server configured in Prefect, or None, and Prefect's home.

    Since importing Prefect takes 2 s, it is imported only if there are settings.

    Raises:
        ValueError: Prefect cannot read its settings.
    """
    home = find_home()
    project = Path("pyproject.toml")
    is_something_set = (
        any(name.upper().startswith("PREFECT_") and name != "PREFECT_HOME" for name in os.environ)
        or any(path.exists() for path in (home / "profiles.toml", Path("prefect.toml"), Path(".env")))
        or (project.is_file() and b"tool.prefect" in project.read_bytes())
    )
    if not is_something_set:
        return None, home
    try:
        from prefect.settings import get_current_settings

        settings = get_current_settings()
    except ValueError as error:
        raise ValueError(
            f"Prefect must be able to read its settings. Received: {error}. Check the variables PREFECT_..., "
            "prefect.toml and .env here, and profiles.toml in $PREFECT_HOME (~/.prefect)."
        ) from None
    return settings.api.url, settings.home


def find_home() -> Path:
    """Return Prefect's home.

    Raises:
        ValueError: there is no home directory for it.
    """
    try:
        return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    except RuntimeError:  # no HOME, and the system does not know the user
        raise ValueError(
            "Prefect needs a folder for its data. Received: neither HOME nor PREFECT_HOME. Set PREFECT_HOME to one."
        ) from None


def check_chosen_server(address: str) -> None:
    """Check that a server answers at the address configured in Prefect, and takes the password configured there.

    Raises:
        ValueError: nothing answers in time, or it refuses the password.
    """
    import httpx

    (source, unset), shown = _find_setting(), hide_credentials(address)
    remedy = f"Start the server with `prefect server start`, or {unset} to run without one"
    options = _find_credentials()

    page = f"{address}/admin/version"  # which needs a password, if the server has one
    try:
        status = answer_within(
            lambda: httpx.get(page, timeout=None, **options).status_code,
            "The server of `PREFECT_API_URL`",
            shown,
            remedy,
        )
    except NoAnswerError as error:
        raise ValueError(str(error)) from None
    except Exception:  # of httpx, of TLS, of an address that is none
        raise ValueError(
            f"`PREFECT_API_URL` must be the address of a running server. Received: {shown}, set {source}; nothing "
            f"answers there. {remedy}."
        ) from None
    if status == HTTPStatus.UNAUTHORIZED:
        raise ValueError(
            f"`PREFECT_API_AUTH_STRING` must be the password of the server at {shown}. Received: another, or none. For "
            f"`kbf serve` it is in the file that it names; or {unset} to run without this server."
        )


def _find_credentials() -> dict[str, Any]:
    """Return the options of a request that Prefect's settings ask for."""
    from prefect.settings import get_current_settings

    chosen, headers = get_current_settings().api, {}
    if chosen.auth_string is not None:
        encoded = base64.b64encode(chosen.auth_string.get_secret_value().encode()).decode()
        headers = {"Authorization": f"Basic {encoded}"}
    elif chosen.key is not None:
        headers = {"Authorization": f"Bearer {chosen.key.get_secret_value()}"}
    return {"headers": headers, "verify": not chosen.tls_insecure_skip_verify}


def find_free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


def check_port(port: int) -> None:
    """Check that a port of this machine is free.

    Raises:
        ValueError: a process listens on it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a process that has just ended does not block it
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ValueError(
                f"The port must be free. Received: {port}: {error.strerror}. Choose another: --port {port + 100}."
            ) from None


def _find_setting() -> tuple[str, str]:
    """Return where `PREFECT_API_URL` is set, and how to unset it."""
    from prefect.context import get_settings_context
    from prefect.settings import PREFECT_API_URL

    profile = get_settings_context().profile
    if PREFECT_API_URL.name in os.environ:
        return "in the environment", "`unset PREFECT_API_URL`"
    if PREFECT_API_URL in profile.settings:
        return f"in the Prefect profile `{profile.name}`", "`prefect config unset PREFECT_API_URL`"
    return "in a file that `prefect config view` names", "remove it there"


def answers(address: str) -> bool:
    """Return whether a server on this machine answers."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # proxies cannot reach this machine
    try:
        with direct.open(f"{address}/health", timeout=ANSWER_SECONDS) as response:
            return response.status == 200
    except OSError:
        return False


# Escape the log messages of runs, which quote names and addresses: Prefect prints them on terminals and keeps them.

RUN_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")
_KEPT = "\n\t" + JOINERS  # Prefect's own messages have several lines


def escape_record(record: logging.LogRecord) -> bool:
    """Escape the message and traceback of a flow or task run, without credentials, before it reaches any handler.

    An error that the user can fix is its line alone, unless the level of Prefect's logs is DEBUG: a traceback of 30
    lines, which Prefect prints twice, would hide it.
    """
    record.msg, record.args = escape_controls(hide_credentials(record.getMessage()), _KEPT), ()
    is_mistake = record.exc_info is not None and isinstance(record.exc_info[1], (ValueError, OSError))
    if is_mistake and not logging.getLogger(record.name).isEnabledFor(logging.DEBUG):
        record.exc_info = record.exc_text = None
    elif record.exc_info:
        text = hide_credentials(logging.Formatter().formatException(record.exc_info))
        record.exc_text = escape_controls(text, _KEPT)
    return True
