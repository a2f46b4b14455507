"""Read and write the files of a remote folder through `fsspec`, with retries on transient errors."""

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from keras_bert_flow.extras import check_installed
from keras_bert_flow.terminal import abridge, escape_controls

ATTEMPTS = 4  # each includes several retries by the store's own library
FIRST_WAIT_SECONDS = 0.5  # doubled each time
# scheme → package that fsspec needs for it
PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hdfs": "pyarrow"}
UPLOADS_ARE_ATOMIC = ("s3", "s3a", "gs", "gcs")  # an object appears once its last byte is uploaded
UNFINISHED_SUFFIX = ".unfinished"
_FINAL = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
# Errors of botocore, aiohttp and the system when no connection is made, after several attempts by each library
_UNREACHED = ("EndpointConnectionError", "ConnectTimeoutError", "ClientConnectorError", "ClientConnectorDNSError")
_answered: set[str] = set()  # schemes whose store has answered this process: it exists, so errors may be transient

_logger = logging.getLogger(__name__)


class Store:
    """The files below an address, by relative name.

    The store's own library finds the credentials: in the environment and in its own files.

    Args:
        address: scheme://place.
    Raises:
        ValueError: the scheme is not known, or the package for it is not installed.
    """

    def __init__(self, address: str):
        self.address = address.rstrip("/")
        self._scheme = scheme = address.partition("://")[0].lower()
        if scheme in PACKAGES:
            check_installed([PACKAGES[scheme]])
        import fsspec

        for library in ("fsspec", "s3fs", "gcsfs"):  # they log tracebacks of errors that are retried
            logging.getLogger(library).setLevel(logging.CRITICAL)
        if scheme not in fsspec.available_protocols():
            raise ValueError(
                f"A remote address must begin with one of {', '.join(sorted(PACKAGES))}. Received: {self.address}. "
                "Copy the files to a local disk."
            )
        self._is_atomic = scheme in UPLOADS_ARE_ATOMIC
        options = {"use_listings_cache": False, "skip_instance_cache": True}
        self._files, self._root = fsspec.core.url_to_fs(self.address, **options)

    def list(self) -> dict[str, tuple[int, str]]:
        """Return the size of each file, and a version that changes with its content, such as an ETag or a time.

        A file at the address itself has the name "". Files whose names would lead out of the folder are left out.

        Raises:
            FileNotFoundError: nothing is there.
        """
        found = self._attempt("", self._files.find, self._root, detail=True)
        if not found:
            raise FileNotFoundError(f"A path must exist. Received: {self.address}, where there is nothing. Check it.")
        prefix, names = self._root.rstrip("/") + "/", {}
        for path, entry in found.items():
            version = next((str(entry[name]) for name in ("ETag", "etag", "md5Hash", "mtime") if entry.get(name)), "")
            name = "" if path == self._root else path.removeprefix(prefix)
            if not name.startswith("/") and ".." not in name.split("/"):
                names[name] = (int(entry["size"]), version)
        return names

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the content of a file, or a byte range of it.

        Raises:
            FileNotFoundError: it does not exist.
            OSError: it cannot be read.
        """
        content = self._attempt(name, self._files.cat_file, self._path(name), start=start, end=end)
        if start is not None and end is not None and len(content) != end - start:
            raise OSError(
                f"A file must have the length that its manifest gives. Received: {self.address}/{name}, which ends "
                f"before byte {end:,}. Build the folder again."
            )
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a small file atomically: readers see the old bytes or the new ones."""
        self._attempt(name, self._files.pipe_file, self._path(name), content)

    def upload(self, path: Path, name: str) -> None:
        """Upload a local file, which gets its remote name once it is complete."""
        if self._is_atomic:
            self._attempt(name, self._files.put_file, str(path), self._path(name))
            return
        unfinished = f"{name}{UNFINISHED_SUFFIX}"
        self._attempt(name, self._files.makedirs, self._path(name).rpartition("/")[0], exist_ok=True)
        self._attempt(name, self._files.put_file, str(path), self._path(unfinished))
        self._attempt(name, self._files.mv, self._path(unfinished), self._path(name))

    def download(self, name: str, path: Path) -> None:
        """Download a file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._attempt(name, self._files.get_file, self._path(name), str(path))

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        with suppress(FileNotFoundError):
            self._attempt(name, self._files.rm_file, self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _attempt(self, name: str, operation: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call an operation with retries, at most `ATTEMPTS` times; once if no store of the scheme has answered yet."""
        place = f"{self.address}/{name}".rstrip("/")
        for attempt in range(ATTEMPTS):
            try:
                result = operation(*arguments, **options)
                _answered.add(self._scheme)
                return result
            except FileNotFoundError:
                _answered.add(self._scheme)
                raise FileNotFoundError(f"A path must exist. Received: {place}, missing. Check it.") from None
            except Exception as error:  # each store's library raises its own errors
                reason = abridge(escape_controls(" ".join(f"{type(error).__name__}: {error}".split())))
                is_final = isinstance(error, _FINAL) or "Credential" in type(error).__name__
                is_final |= self._scheme not in _answered and type(error).__name__ in _UNREACHED
                if is_final or attempt == ATTEMPTS - 1:
                    kind = PermissionError if isinstance(error, PermissionError) else OSError
                    raise kind(
                        f"A remote address must be reachable. Received: {place}: {reason}. "
                        "Check the address, the credentials in the environment, and the network."
                    ) from None
                _logger.warning("%s: %s. Trying again.", place, reason)
                time.sleep(FIRST_WAIT_SECONDS * 2**attempt)
