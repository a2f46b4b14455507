"""A stand-in, on this machine, for what `huggingface_hub` asks of the Hub to fetch a model and to send one."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

COMMIT = "c0ffee00" * 5
TOKEN = "hf_a_token_that_may_write"
ERRORS = {"tiny/gated": (403, "GatedRepo"), "tiny/missing": (401, "RepoNotFound"), "tiny/broken": (500, None)}
LARGE_BYTES = 1_000  # from here on a file goes by way of Git LFS


class Handler(BaseHTTPRequestHandler):
    """Answer requests about the folders of `server.models`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._answer(with_body=True)

    def do_HEAD(self):
        self._answer(with_body=False)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        path = self._ask()
        if path != "api/validate-yaml" and not self._is_allowed():
            return self._send(401, b"{}", {"X-Error-Code": "RepoNotFound"})
        if path == "api/validate-yaml":
            is_named = json.loads(body)["content"].find("license: ") > 0
            errors = [] if is_named else [{"message": "license is required"}]
            return self._send_json({"errors": errors, "warnings": []}, 200 if is_named else 400)
        if path == "api/repos/create":
            asked = json.loads(body)
            is_private = asked.get("private") or asked.get("visibility") == "private"  # of earlier releases, and today
            return self._create(f"{asked['organization']}/{asked['name']}", is_private)
        if path.endswith(".git/info/lfs/objects/batch"):
            return self._send_json({"transfer": "basic", "objects": [*map(self._place, json.loads(body)["objects"])]})
        name, _, rest = path.removeprefix("api/models/").partition("/preupload/")
        if rest:
            files = json.loads(body)["files"]
            modes = [(f["path"], "lfs" if f["size"] >= LARGE_BYTES else "regular") for f in files]
            return self._send_json(
                {"files": [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes]}
            )
        name, _, branch = path.removeprefix("api/models/").partition("/commit/")
        if branch:
            return self._commit(name, branch, [json.loads(line) for line in body.splitlines()])
        name, _, branch = path.removeprefix("api/models/").partition("/branch/")
        self.server.branches.add((name, branch))
        self._send_json({})

    def do_PUT(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        oid = self._ask().rpartition("/")[2]
        if self.server.loses_files or hashlib.sha256(content).hexdigest() != oid:
            return self._send(400, b"{}")  # an answer that is not asked for again
        self.server.objects[oid] = content
        self._send(200, b"")

    def _is_allowed(self) -> bool:
        return self.headers["Authorization"] == f"Bearer {TOKEN}"

    def _ask(self) -> str:
        path = unquote(self.path.partition("?")[0]).strip("/")
        self.server.asked.append(path)
        return path

    def _create(self, name: str, is_private: bool) -> None:
        url = {"url": f"http://{self.headers['Host']}/{name}"}
        if name in self.server.models:
            return self._send_json(url, 409)
        self.server.models[name] = self.server.home / name
        self.server.models[name].mkdir(parents=True)
        self.server.private[name] = is_private
        self._send_json(url)

    def _place(self, asked: dict) -> dict:
        known = asked["oid"] in self.server.objects
        href = f"http://{self.headers['Host']}/objects/{asked['oid']}"
        return asked | ({} if known else {"actions": {"upload": {"href": href, "header": {}}}})

    def _commit(self, name: str, branch: str, lines: list[dict]) -> None:
        folder = self.server.models[name]
        for line in lines[1:]:
            value = line["value"]
            path = folder / value["path"]
            if line["key"] == "deletedFile":
                path.unlink()
                continue
            is_small = line["key"] == "file"
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(base64.b64decode(value["content"]) if is_small else self.server.objects[value["oid"]])
        self.server.commits.append((name, branch, lines[0]["value"]["summary"]))
        self._send_json({"commitUrl": f"http://{self.headers['Host']}/{name}/commit/{COMMIT}", "commitOid": COMMIT})

    def _answer(self, with_body: bool) -> None:
        path = self._ask()
        name = next((name for name in (*self.server.models, *ERRORS) if f"{name}/" in f"{path}/"), None)
        if name is None or name in ERRORS:
            status, code = ERRORS.get(name, (401, "RepoNotFound"))
            return self._send(status, b"{}", {"X-Error-Code": code} if code else {}, with_body)
        folder, rest = self.server.models[name], path.partition(name)[2].strip("/").split("/")
        known = ("main", COMMIT, "v1", *(branch for model, branch in self.server.branches if model == name))
        if rest[0] == "revision" and rest[1] not in known:
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

    def _send_json(self, content, status: int = 200) -> None:
        self._send(status, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None, with_body: bool = True) -> None:
        self.send_response(status)
        for name, value in ((headers or {}) | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, *arguments):
        pass


class Hub(ThreadingHTTPServer):
    """What is there, and what came.

    Attributes:
        models: name → its folder.
        home: folder for models that are made.
        asked: paths, in order.
        commits: name, branch and message of each.
        branches: name and branch of each that was made.
        private: name → whether it was made so.
        objects: files of Git LFS by their sha256.
        loses_files: whether they are refused.
        address: of the server.
    """

    def __init__(self, models: dict[str, Path], home: Path | None = None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.models, self.home = dict(models), home
        self.asked, self.commits = [], []
        self.branches, self.private, self.objects = set(), {}, {}
        self.loses_files = False
        self.address = f"http://127.0.0.1:{self.server_port}"


@contextmanager
def serving_hub(models: dict[str, Path], home: Path | None = None) -> Iterator[Hub]:
    """Serve folders by the names of their models, and take others."""
    with Hub(models, home) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
