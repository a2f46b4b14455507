"""A WebHDFS service: the real one that KBF_TEST_WEBHDFS names as HOST:PORT, or a small one of this process.

The small one answers as Hadoop's documentation of the WebHDFS REST API says (operations, redirects to a DataNode,
exceptions and their statuses), and as HDFS does where that matters here: a file shows while it is written, a rename
needs the folder of its target, and replaces a file only if told to.
"""

import getpass
import json
import os
import posixpath
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

REAL = "KBF_TEST_WEBHDFS"
PREFIX = "/webhdfs/v1"
STATUSES = {"FileNotFoundException": 404, "AccessControlException": 403}


class Refused(Exception):
    """An exception of Hadoop, by its class and message."""


class Files:
    """Files and folders by path: bytes, or None for a folder."""

    def __init__(self):
        self.entries, self.times, self.lock = {"/": None}, {"/": 0}, threading.RLock()
        self.forbidden = ()  # folders that may not be listed or written to

    def check(self, path):
        if any(path == place or path.startswith(f"{place}/") for place in self.forbidden):
            raise Refused("AccessControlException", f"Permission denied: user=test, inode={path!r}")

    def find(self, path):
        if path not in self.entries:
            raise Refused("FileNotFoundException", f"File does not exist: {path}")
        return self.entries[path]

    def set(self, path, content):
        with self.lock:
            self.entries[path], self.times[path] = content, int(time.time() * 1000)

    def make_folder(self, path):
        with self.lock:
            while path not in self.entries:
                self.set(path, None)
                path = posixpath.dirname(path)

    def below(self, path):
        start = path.rstrip("/") + "/"
        return [name for name in self.entries if name.startswith(start) and name != "/"]

    def status(self, path, name):
        content = self.find(path)
        return {
            "pathSuffix": name,
            "type": "DIRECTORY" if content is None else "FILE",
            "length": len(content or b""),
            "modificationTime": self.times[path],
        }

    def list(self, path):
        if self.find(path) is not None:
            return [self.status(path, "")]
        names = sorted(name for name in self.below(path) if posixpath.dirname(name) == path)
        return [self.status(name, posixpath.basename(name)) for name in names]

    def rename(self, path, target, replace):
        self.find(path)
        if self.entries.get(posixpath.dirname(target), b"") is not None:
            raise Refused("FileNotFoundException", f"rename destination parent {posixpath.dirname(target)} not found.")
        if target in self.entries and not replace:
            return False
        self.set(target, self.entries.pop(path))
        return True

    def delete(self, path, recursive):
        if path not in self.entries:
            return False
        below = self.below(path)
        if below and not recursive:
            raise Refused("PathIsNotEmptyDirectoryException", f"`{path} is non empty': Directory is not empty")
        for name in (path, *below):
            del self.entries[name]
        return True


def make_handler(files: Files) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # headers and body together, or each answer waits 40 ms for an acknowledgement

        def respond(self, status, body=b"", **headers):
            self.send_response(status)
            for name, value in ({"Content-Length": len(body)} | headers).items():
                self.send_header(name, str(value))
            self.end_headers()
            self.wfile.write(body)

        def read_pieces(self):
            """Yield the body, as it comes."""
            left = int(self.headers.get("Content-Length", 0))
            while left > 0 and (piece := self.rfile.read(min(left, 1 << 16))):
                left -= len(piece)
                yield piece

        def answer(self):
            parts = urlsplit(self.path)
            path = posixpath.normpath(unquote(parts.path).removeprefix(PREFIX) or "/")
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            try:
                self.operate(query["op"].upper(), path, query, "datanode" in query)
            except Refused as refused:
                kind, message = refused.args
                body = json.dumps({"RemoteException": {"exception": kind, "message": message}}).encode()
                self.respond(STATUSES.get(kind, 403), body)

        def operate(self, operation, path, query, is_data):
            if operation != "CREATE" or is_data:  # whether a file may be created, HDFS only says at the DataNode
                files.check(path)
            if operation in ("OPEN", "CREATE") and not is_data:
                if operation == "OPEN":
                    files.find(path)
                self.respond(307, Location=f"http://{self.headers['Host']}{self.path}&datanode=true")
            elif operation == "OPEN":
                start = int(query.get("offset", 0))
                self.respond(200, files.find(path)[start:][: int(query.get("length", 1 << 40))])
            elif operation == "CREATE":
                files.make_folder(posixpath.dirname(path))
                files.set(path, b"")
                for piece in self.read_pieces():
                    files.set(path, files.find(path) + piece)
                self.respond(201)
            elif operation == "LISTSTATUS":
                self.say({"FileStatuses": {"FileStatus": files.list(path)}})
            elif operation == "GETFILESTATUS":
                self.say({"FileStatus": files.status(path, "")})
            elif operation == "MKDIRS":
                files.make_folder(path)
                self.say({"boolean": True})
            elif operation == "RENAME":
                with files.lock:
                    done = files.rename(path, query["destination"], query.get("renameoptions") == "OVERWRITE")
                self.say({"boolean": done})
            elif operation == "DELETE":
                with files.lock:
                    self.say({"boolean": files.delete(path, query["recursive"] == "true")})
            else:
                raise Refused("UnsupportedOperationException", f"{operation} is not supported")

        def say(self, answer):
            self.respond(200, json.dumps(answer).encode(), **{"Content-Type": "application/json"})

        do_GET = do_PUT = do_DELETE = answer

        def log_message(self, *arguments):
            pass

    return Handler


@contextmanager
def webhdfs() -> Iterator[tuple[str, Files | None]]:
    """Yield the address of the service, and the files of the small one."""
    if real := os.environ.get(REAL):
        yield f"hdfs://{real}/tmp/kbf-test-{getpass.getuser()}-{os.getpid()}", None
        return
    files = Files()
    server = ThreadingHTTPServer(("127.0.0.1", 0), make_handler(files))
    server.daemon_threads = True
    server.handle_error = lambda *arguments: None  # connections that a killed process left
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"hdfs://127.0.0.1:{server.server_address[1]}/user/test", files
    finally:
        server.shutdown()
        server.server_close()
