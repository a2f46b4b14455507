"""The server of the reports: they and nothing else, for this machine's own browsers."""

import http.client
import os
import socket
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pytest

from flows.server import find_free_port
from flows.serving import serving_reports
from flows.stages import REPORT
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
def place(tmp_path: Path):
    """Yield the port of a server, and a folder of results with a report beside other things."""
    folder = tmp_path / "runs"
    for name in ("whole", "folder/report.html", "linked"):
        (folder / name).mkdir(parents=True)
    (folder / "whole" / REPORT).write_text("<p>read")
    (folder / "folder" / REPORT / "listed").write_text("hidden")
    (folder / "linked" / REPORT).symlink_to(tmp_path / "secret.html")
    (tmp_path / "secret.html").write_text("hidden")
    (tmp_path / REPORT).write_text("hidden")
    (folder / "circle").symlink_to(folder / "circle")
    os.mkfifo(folder / "fifo")
    port = find_free_port()
    with serving_reports(port, [folder.resolve()]):
        yield port, folder.resolve()


def ask(port: int, path: str, host: str | None = None, method: str = "GET") -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)) as connection:
        connection.putrequest(method, path, skip_host=host is not None)
        if host:
            connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()


def test_report_is_read(place):
    port, folder = place
    path = quote(f"{folder}/whole/{REPORT}")
    assert ask(port, path) == ask(port, path, f"localhost:{port}") == (200, b"<p>read")
    assert ask(port, path + "?x=1")[0] == 200


@pytest.mark.parametrize(
    "name",
    [
        "whole%00/report.html",
        "whole/report.html%00",
        "%00",
        "%ff%fe/report.html",
        "%ed%a0%80/report.html",  # a lone surrogate
        "x" * 5000 + "/report.html",
        "circle/report.html",
        "fifo",
        "folder/report.html",
        "folder/report.html/",
        "folder/report.html/listed",
        "whole",
        "whole/",
        "",
        "linked/report.html",
        "../report.html",
        "whole/../../report.html",
        "%2e%2e/report.html",
    ],
)
def test_everything_else_is_missing(place, name: str, capfd: pytest.CaptureFixture):
    port, folder = place
    status, content = ask(port, f"{quote(str(folder))}/{name}")
    assert status == 404 and b"hidden" not in content and b"listed" not in content
    assert "Traceback" not in "".join(capfd.readouterr())


@pytest.mark.parametrize("host", ["rebound.example", "rebound.example:{port}", "127.0.0.1", "localhost:1", ""])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_other_hosts_are_refused(place, host: str, method: str):
    port, folder = place
    assert ask(port, f"{folder}/whole/{REPORT}", host.format(port=port), method)[0] == 400


def test_reader_that_leaves_early_is_no_error(place, capfd: pytest.CaptureFixture):
    port, folder = place
    (folder / "whole" / REPORT).write_bytes(b"x" * (64 << 20))
    with socket.create_connection(("127.0.0.1", port)) as reader:
        reader.sendall(f"GET {folder}/whole/{REPORT} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        reader.recv(10)
    assert ask(port, f"{folder}/none")[0] == 404
    assert "Traceback" not in "".join(capfd.readouterr())
