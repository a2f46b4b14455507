"""A proxy before an object store that answers 503 or 403, cuts connections, or lets who asks wait."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.patience import PATIENCE_SECONDS

BUSY, FORBIDDEN, CUT = 503, 403, "cut"


@dataclass
class Trouble:
    """What the proxy does to requests, and what it saw.

    Attributes:
        address: of the proxy.
        decide: takes the number of a request, from 1, its method and path; returns one of the words above
            or None, and may wait.
        seen: method, path and range of each request.
    """

    address: str = ""
    decide: Callable[[int, str, str], int | str | None] = lambda number, method, path: None
    seen: list[tuple[str, str, str | None]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reads(self) -> list[tuple[str, str | None]]:
        """Return path and range of each file asked for."""
        return [(path, span) for method, path, span in self.seen if method == "GET" and "?" not in path]


@contextmanager
def troubled(upstream: str) -> Iterator[Trouble]:
    """Stand before a server, and yield what can be made to go wrong."""
    trouble, place = Trouble(), upstream.removeprefix("http://")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def forward(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            with trouble.lock:
                trouble.seen.append((self.command, self.path, self.headers.get("Range")))
                number = len(trouble.seen)
            verdict = trouble.decide(number, self.command, self.path)
            if verdict in (BUSY, FORBIDDEN):
                self.send_response(verdict)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            connection = http.client.HTTPConnection(place, timeout=PATIENCE_SECONDS)
            connection.request(self.command, self.path, body, dict(self.headers))
            answer = connection.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            headers = {
                name: value for name, value in answer.getheaders() if name not in ("Connection", "Date", "Server")
            }
            for name, value in ({} if self.command == "HEAD" else {"Content-Length": len(content)} | headers).items():
                self.send_header(name, str(value))
            if self.command == "HEAD":
                for name, value in headers.items():
                    self.send_header(name, value)
            self.end_headers()
            if verdict == CUT:
                self.wfile.write(content[: len(content) // 2])
                self.wfile.flush()
                self.close_connection = True
                self.connection.close()
                return
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

        def log_message(self, *arguments):
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request, address):  # of connections that it cut, or that a killed process left
            pass

    server = Server(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    trouble.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield trouble
    finally:
        server.shutdown()
        server.server_close()
