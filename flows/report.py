"""Show the results of a run in Prefect's UI, as artifacts."""

import base64
import html
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from flows.own_server import HOST, list_hosts
from flows.tasks import TaskResult
from keras_bert_flow.console.terminal import code_span, escape_markdown
from keras_bert_flow.evaluation.page import find_figures
from keras_bert_flow.files.paths import name_path
from keras_bert_flow.stores.fetching import fetch

# Serve the reports of finished runs on this machine, since browsers open no local files from Prefect's UI.

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


RESULTS = "report.md"
GREY = "#8a8f98"  # readable on the UI's light and dark pages; an image does not inherit the text colour
SVG = "http://www.w3.org/2000/svg"


def show_report(evaluation: Path) -> None:
    """Create the artifact `report`: the conclusion, the tables, the curves, and the location of the whole report."""
    here, place = fetch(evaluation), name_path(evaluation / REPORT)
    results = (here / RESULTS).read_text(encoding="utf-8").strip()
    where, address = f"The whole report: {code_span(place)}", find_page_url(here / REPORT)
    if address is not None:
        create_link_artifact(address, link_text="The whole report", key="report-page", description=where)
        where = f"[The whole report]({address}), {code_span(place)}"
    drawings = "\n\n".join(draw_images((here / REPORT).read_text(encoding="utf-8")))
    create_markdown_artifact(f"{results}\n\n{where}\n\n{drawings}\n", key="report", description=where)


def show_stages(results: Sequence[TaskResult]) -> None:
    """Create the artifact `stages`: one row per stage, with its key, folder and time."""
    rows = [
        {
            "stage": done.stage.name,
            "key": done.stage.key,
            "cached": done.is_cached,
            "seconds": done.seconds,
            "folder": escape_markdown(name_path(done.stage.folder)),  # the UI renders cells as Markdown
        }
        for done in results
    ]
    create_table_artifact(key="stages", table=rows, description="What each stage made and where.")


def draw_images(page: str) -> list[str]:
    """Return the drawings of a report as Markdown images with inline data."""
    images = []
    for svg, caption in find_figures(page):
        standalone = re.sub("<svg", f'<svg xmlns="{SVG}"', svg, count=1).replace("currentColor", GREY)
        data = base64.b64encode(standalone.encode()).decode()
        images.append(f"![{escape_markdown(html.unescape(caption))}](data:image/svg+xml;base64,{data})")
    return images
