"""Serve the reports of finished runs on this machine, since browsers open no local files from Prefect's UI."""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

REPORT = "report.html"
HOST = "127.0.0.1"
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

    def __init__(self, *arguments: Any, folders: Sequence[Path], **options: Any):
        self._folders = folders
        super().__init__(*arguments, directory="/", **options)

    def translate_path(self, path: str) -> str:
        place = Path(super().translate_path(path)).resolve()
        is_ours = place.name == REPORT and any(place.is_relative_to(folder) for folder in self._folders)
        return str(place) if is_ours else os.devnull + "/none"

    def log_message(self, *arguments: object) -> None:
        """Log nothing, for the privacy of the readers."""


@contextmanager
def serving_reports(port: int, folders: Sequence[Path]) -> Iterator[None]:
    """Serve reports on this machine within the block."""
    server = ThreadingHTTPServer((HOST, port), partial(ReportHandler, folders=folders))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
