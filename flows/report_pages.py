"""Serve the reports of finished runs on this machine, since browsers open no local files from Prefect's UI."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.own_server import HOST, list_hosts

REPORT = "report.html"
IDLE_SECONDS = 20.0  # without a request, a connection is closed
REPORTS_URL, REPORTS_FOLDERS = "KBF_REPORTS_URL", "KBF_REPORTS_FOLDERS"  # set by `kbf serve`


def find_page_url(page: Path) -> str | None:
    """Return the URL of a report; None if its folder is not served."""
    url, folders = os.environ.get(REPORTS_URL), os.environ.get(REPORTS_FOLDERS, "").split(os.pathsep)
    place = page.resolve()
    if not url or not any(folder and place.is_relative_to(folder) for folder in folders):
        return None
    return url + quote(place.as_posix())


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
