"""Run a Prefect server with its UI, a worker and the reports on this machine until a signal: `kbf serve`.

A server or worker that ends is restarted; the runs are in the server's database, and the stages in their folders.
Without a password of the user's own, the server has one that is made once per home.
"""

import os
import re
import secrets
import shlex
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.child import ended_on_leaving, start_child, stop_child
from flows.own_server import CLIENT_PASSWORD, HOST, LOGIN, SERVER_PASSWORD, list_hosts
from flows.server import REPORTS_FOLDERS, REPORTS_URL, StartingServer, check_port, server_command, server_settings
from flows.stages import REPORT, StageError
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.machine import share_cores
from keras_bert_flow.files.paths import find_address
from keras_bert_flow.results.artifacts import locked

POOL = "local"
POLL_SECONDS = 1.0
STOP_SECONDS = 35.0  # Prefect's worker gives a run 30 s to write its checkpoint
MOST_STARTS, WITHIN_SECONDS = 5, 120.0
PASSWORD_FILE = "kbf-serve.password"
USER = "admin"  # Prefect takes any; tools such as curl want one
IDLE_SECONDS = 20.0  # without a request, a connection to the reports is closed


class Kept:
    """A child process that is restarted when it ends."""

    def __init__(self, name: str, start: Callable[[], subprocess.Popen], log: Path):
        self.name, self.child = name, start()
        self._start, self._log, self._starts = start, log, [time.monotonic()]

    def check(self, on_line: Callable[[str], None]) -> None:
        """Restart the child if it has ended.

        Raises:
            StageError: it has ended too often in a short time.
        """
        status = self.child.poll()
        if status is None:
            return
        self._starts = [start for start in self._starts if time.monotonic() - start < WITHIN_SECONDS]
        if len(self._starts) >= MOST_STARTS:
            raise StageError(
                f"The {self.name} ended {MOST_STARTS} times in {WITHIN_SECONDS:.0f} s. Its log: {self._log}"
            )
        on_line(f"The {self.name} ended with status {status}; it is started again. Its log: {self._log}")
        stop_child(self.child, 0.0)  # kills the rest of its group
        self._starts.append(time.monotonic())
        self.child = self._start()

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Stop the child at the end of the block, or when a signal ends this process within it."""
        with ExitStack() as stack:
            stack.callback(lambda: stop_child(self.child, STOP_SECONDS))
            stack.enter_context(ended_on_leaving(lambda: self.child, STOP_SECONDS))
            yield


def serve(
    configs: Sequence[str], home: Path, port: int, parallel: int = 1, on_line: Callable[[str], None] = print
) -> None:
    """Start everything, register a deployment for each flow and configuration, and run until a signal arrives.

    Args:
        configs: configuration files.
        home: folder of Prefect's database, of the password, and of the logs of server and worker.
        port: port of the server and its UI; the reports use the next one.
        parallel: maximum number of concurrent runs.
    Raises:
        FileNotFoundError, ValueError: a configuration is invalid, or a port is in use; nothing has been started then.
        StageError: the server does not start.
    """
    runs = {load_config(path).runs for path in configs}
    folders = sorted({Path(folder).resolve() for folder in runs if not find_address(folder)})
    for number in (port, port + 1):
        check_port(number)
    home.mkdir(parents=True, exist_ok=True)
    address = f"http://{HOST}:{port}/api"
    os.environ["PREFECT_API_URL"] = address
    login, variable = _choose_password(home, port)
    os.environ |= {REPORTS_URL: f"http://{HOST}:{port + 1}", REPORTS_FOLDERS: os.pathsep.join(map(str, folders))}
    with ExitStack() as stack:
        stack.enter_context(serving_reports(port + 1, folders))
        settings = server_settings(port)
        log = home / "server.log"
        server = Kept("server", partial(start, server_command(port, ui=True), settings, log), log)
        stack.enter_context(server.kept())
        StartingServer(address, server.child, log).wait()

        from prefect import get_client

        from flows.deployments import Queue, deploy, end_killed_runs

        names = deploy(configs, POOL, Path.cwd(), parallel)
        client = stack.enter_context(get_client(sync_client=True))
        log = home / "worker.log"

        def start_worker() -> subprocess.Popen:
            end_killed_runs(client, POOL, on_line)
            return start(
                (sys.executable, "-m", "prefect", "worker", "start", "--pool", POOL), share_cores(parallel), log
            )

        worker = Kept("worker", start_worker, log)
        stack.enter_context(worker.kept())
        on_line(f"Prefect's UI: http://{HOST}:{port}, with {len(names)} deployments: {', '.join(names)}")
        on_line(f"Log in: {login}. Who has the password can run commands as you.")
        variables = f"PREFECT_API_URL={address} {variable}"
        on_line(f"A run from a terminal: {variables} prefect deployment run '{names[0]}' --watch")
        on_line(f"Reports: http://{HOST}:{port + 1}. Logs: {home}. Ctrl-C ends them all; runs go on from there.")
        queue = Queue(client, POOL, parallel, f"http://{HOST}:{port}")
        while True:
            time.sleep(POLL_SECONDS)
            for kept in (server, worker):
                kept.check(on_line)
            queue.tell()


def start(command: Sequence[str], settings: dict[str, str], log: Path) -> subprocess.Popen:
    with open(log, "ab") as file:
        return start_child(command, settings, file)


def read_password(path: Path) -> str:
    """Return the password in a file that only this user may read; the file is made if it does not exist.

    Raises:
        ValueError: others may read it, it is somebody else's or a link, or it holds no password.
    """
    with locked(path.with_name(f".{path.name}.lock")):  # several `kbf serve` may begin with one home
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            pass
        else:
            with open(descriptor, "w", encoding="ascii") as file:
                file.write(f"{USER}:{secrets.token_urlsafe()}\n")
        found = path.lstat()
        password = path.read_text("ascii", "replace").strip() if stat.S_ISREG(found.st_mode) else ""
    if found.st_mode & 0o077 or found.st_uid != os.geteuid() or not re.fullmatch(r"[!-~]{16,}", password):
        raise ValueError(
            "The file of the password must be yours, of mode 0600, and hold at least 16 characters. Received: "
            f"{path}, {stat.filemode(found.st_mode)}, {len(password)} characters. Delete it, and `kbf serve` makes "
            f"another; or set {SERVER_PASSWORD}."
        )
    return password


def _choose_password(home: Path, port: int) -> tuple[str, str]:
    """Set the password of server and clients in the environment: the one that Prefect's settings name, or our own.

    Returns:
        Where to log in, and the variable to set for Prefect's commands.
    """
    from prefect.context import refresh_global_settings_context
    from prefect.settings import get_current_settings

    page = f"http://{HOST}:{port}{LOGIN}"
    chosen = get_current_settings().server.api.auth_string
    if chosen is not None and (password := chosen.get_secret_value()):
        login, source = f"{page}, with the password of {SERVER_PASSWORD}", f'"${SERVER_PASSWORD}"'
    else:
        file = home.absolute() / PASSWORD_FILE
        password = read_password(file)
        login = f"{page}#{quote(password, safe=':')} (the password is in {file})"
        source = f'"$(cat {shlex.quote(str(file))})"'
    os.environ |= {SERVER_PASSWORD: password, CLIENT_PASSWORD: password}
    refresh_global_settings_context()  # settings were read when Prefect was imported
    return login, f"{CLIENT_PASSWORD}={source}"


# Serve the reports of finished runs, since browsers open no local files from Prefect's UI.


class ReportHandler(SimpleHTTPRequestHandler):
    """Serve the files `report.html` in the folders of results, and nothing else."""

    timeout = IDLE_SECONDS

    def __init__(self, *arguments: Any, folders: Sequence[Path], hosts: Sequence[str], **options: Any):
        self._folders, self._hosts = folders, hosts
        super().__init__(*arguments, directory="/", **options)

    def send_head(self) -> Any:
        if [host.lower() for host in self.headers.get_all("Host", [])] not in [[host] for host in self._hosts]:
            self.send_error(HTTPStatus.BAD_REQUEST, f"Host must be {self._hosts[0]}")
            return None
        return super().send_head()

    def translate_path(self, path: str) -> str:
        try:
            place = Path(super().translate_path(path)).resolve()
            is_ours = place.name == REPORT and place.is_file()
        except (ValueError, OSError, RuntimeError):  # a null byte, a lone surrogate, a name too long, a circle of links
            is_ours = False
        if is_ours and any(place.is_relative_to(folder) for folder in self._folders):
            return str(place)
        return os.devnull + "/none"

    def end_headers(self) -> None:
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("X-Frame-Options", "DENY")
        super().end_headers()

    def log_message(self, *arguments: object) -> None:
        """Log nothing, for the privacy of the readers."""


class ReportServer(ThreadingHTTPServer):
    """A server whose threads end with the process."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing: a reader that leaves in the middle of a page is no error."""


@contextmanager
def serving_reports(port: int, folders: Sequence[Path]) -> Iterator[None]:
    """Serve reports on this machine within the block."""
    server = ReportServer((HOST, port), partial(ReportHandler, folders=folders, hosts=list_hosts(port)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
