"""HDFS through WebHDFS, its HTTP interface, which needs no Java: `fsspec`'s filesystem with atomic writes and renames.

An address is hdfs://HOST:PORT/PATH, with the HTTP port of a NameNode. The user is `$HADOOP_USER_NAME`, or the one of
this process, as for Hadoop's own clients without Kerberos.
"""

import getpass
import os
import re
import uuid
from contextlib import suppress
from typing import IO, Any
from urllib.parse import urlsplit

import requests
from fsspec.implementations.webhdfs import WebHDFS
from fsspec.spec import AbstractBufferedFile
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

USER = "HADOOP_USER_NAME"  # environment variable
BLOCK_BYTES = 8 << 20  # read at a time
_TIMEOUT_SECONDS = (10, 120)  # to connect, and between two bytes
_RETRIES = Retry(total=3, connect=0, backoff_factor=0.5, status_forcelist=(502, 503, 504))
_REASON = re.compile(r"\[Errno -?\d+\] [^'\"()]+")  # in what requests and urllib3 wrap around it


def connect(address: str) -> tuple["Hdfs", str]:
    """Return the filesystem of an hdfs:// address, and the path on it.

    Raises:
        ValueError: the address does not name a host and a port.
    """
    parts = urlsplit(address)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:  # the port is not a number
        host = port = None
    if not host or not port:
        raise ValueError(
            f"An address on HDFS must name the host and the port of WebHDFS. Received: {address}. "
            "Give hdfs://HOST:PORT/PATH, where the port of a NameNode is usually 9870."
        )
    user = os.environ.get(USER) or getpass.getuser()
    filesystem = Hdfs(host=host, port=port, user=user, skip_instance_cache=True, use_listings_cache=False)
    return filesystem, parts.path.rstrip("/") or "/"


class Hdfs(WebHDFS):
    """A filesystem on which a file appears once it is complete, and may replace another.

    WebHDFS itself shows a file while it is written, and `fsspec` appends to it block by block, takes an error message
    of a DataNode for content, and waits without limit.
    """

    def _connect(self) -> None:
        super()._connect()
        self.session.mount("http://", HTTPAdapter(max_retries=_RETRIES))
        send = self.session.request

        def request(*arguments: Any, **options: Any) -> Any:
            try:
                return send(*arguments, **options, timeout=_TIMEOUT_SECONDS)
            except requests.ConnectionError as error:
                reason = _REASON.search(str(error))
                raise ConnectionError(reason[0] if reason else str(error)) from None

        self.session.request = request

    def walk(self, path: str, maxdepth: int | None = None, topdown: bool = True, **options: Any) -> Any:
        """As `fsspec`'s, but a folder that may not be listed is an error. One that is gone by then is not."""
        return super().walk(path, maxdepth, topdown, **options | {"on_error": _refuse})

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        span = {"offset": start or 0} | ({} if end is None else {"length": end - (start or 0)})
        return b"" if end is not None and end <= (start or 0) else self._call("OPEN", path=path, **span).content

    def get_file(self, rpath: str, lpath: str, **options: Any) -> None:
        size = self.info(rpath)["size"]
        with open(lpath, "wb") as file:
            for start in range(0, size, BLOCK_BYTES):
                file.write(self.cat_file(rpath, start, min(start + BLOCK_BYTES, size)))

    def put_file(self, lpath: str, rpath: str, **options: Any) -> None:
        with open(lpath, "rb") as file:
            self._create(rpath, file if os.path.getsize(lpath) else b"")

    def pipe_file(self, path: str, value: bytes, **options: Any) -> None:
        self._create(path, value)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        """Rename a file, replacing another, in one step. A source that is gone has been moved by an earlier attempt.

        Raises:
            FileNotFoundError: neither the source nor the target exists.
            OSError: the service cannot replace a file.
        """
        self.makedirs(self._parent(path2), exist_ok=True)
        try:
            answer = self._call("RENAME", "put", path=path1, destination=path2, renameoptions="OVERWRITE")
        except FileNotFoundError:
            if not self.exists(path2):
                raise
            return
        if answer.content and not answer.json().get("boolean", True):  # of a gateway that does not know the option
            raise OSError(f"{path1} could not be renamed to {path2}")

    def remove_empty_folder(self, path: str) -> bool:
        """Remove a folder if nothing is in it; return whether it is gone."""
        try:
            self._call("DELETE", "delete", path=path, recursive="false")
        except RuntimeError:  # it is not empty
            return False
        return True

    def _open(self, path: str, mode: str = "rb", **options: Any) -> "_File":
        return _File(self, path, mode=mode, block_size=BLOCK_BYTES)

    def _create(self, path: str, content: IO[bytes] | bytes) -> None:
        """Write a hidden file, then give it its name."""
        unfinished = f"{self._parent(path)}/.{uuid.uuid4().hex}"
        try:
            answer = self._call("CREATE", "put", path=unfinished, redirect=False, overwrite="true")
            headers = {"Content-Type": "application/octet-stream"}
            answer = self.session.put(answer.headers["Location"], data=content, headers=headers)
            if not answer.ok:
                with suppress(ValueError, KeyError):  # what the DataNode says is wrong
                    refused = answer.json()["RemoteException"]
                    is_forbidden = refused["exception"] in ("AccessControlException", "SecurityException")
                    raise (PermissionError if is_forbidden else OSError)(refused["message"].splitlines()[0])
            answer.raise_for_status()
            self.mv(unfinished, path)
        except BaseException:
            with suppress(requests.RequestException, OSError, RuntimeError):
                self.rm_file(unfinished)
            raise


def _refuse(error: Exception) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


class _File(AbstractBufferedFile):
    """A file to read."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.cat_file(self.path, start, min(end, self.size))
