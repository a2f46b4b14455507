"""A stand-in, on this machine, for what `huggingface_hub` asks of the Hub to fetch a model."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "c0ffee00" * 5
ERRORS = {"tiny/gated": (403, "GatedRepo"), "tiny/missing": (401, "RepoNotFound"), "tiny/broken": (500, None)}


@contextmanager
def serving_hub(models: dict[str, Path]) -> Iterator[tuple[str, list[str]]]:
    """Serve folders by the names of their models; yield the address and the paths asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self._answer(with_body=True)

        def do_HEAD(self):
            self._answer(with_body=False)

        def _answer(self, with_body: bool) -> None:
            path = unquote(self.path.partition("?")[0]).strip("/")
            asked.append(path)
            name = next((name for name in (*models, *ERRORS) if f"{name}/" in f"{path}/"), None)
            if name is None or name in ERRORS:
                status, code = ERRORS.get(name, (401, "RepoNotFound"))
                return self._send(status, b"{}", {"X-Error-Code": code} if code else {}, with_body)
            folder, rest = models[name], path.partition(name)[2].strip("/").split("/")
            if rest[0] == "revision" and rest[1] not in ("main", COMMIT, "v1"):
                return self._send(404, b"{}", {"X-Error-Code": "RevisionNotFound"}, with_body)
            if path.startswith("api/models/"):
                names = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
                content = {"id": name, "modelId": name, "sha": COMMIT, "siblings": [{"rfilename": n} for n in names]}
                if rest[0] == "tree":
                    sizes = [(n, (folder / n).stat().st_size) for n in names]
                    content = [{"type": "file", "path": n, "size": size, "oid": COMMIT} for n, size in sizes]
                return self._send(200, json.dumps(content).encode(), {"Content-Type": "application/json"}, with_body)
            file = folder.joinpath(*rest[2:])  # resolve/REVISION/FILE
            if not file.is_file():
                return self._send(404, b"{}", {"X-Error-Code": "EntryNotFound"}, with_body)
            content = file.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()}"'
            self._send(200, content, {"ETag": tag, "X-Repo-Commit": COMMIT}, with_body)

        def _send(self, status: int, content: bytes, headers: dict[str, str], with_body: bool) -> None:
            self.send_response(status)
            for name, value in (headers | {"Content-Length": str(len(content))}).items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(content)

        def log_message(self, *arguments):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
