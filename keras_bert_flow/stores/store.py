"""Read and write files of a remote folder through `fsspec`: retries, and a deadline for the first answer."""

import io
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeVar

from keras_bert_flow.console.terminal import abridge, escape_controls, hide_credentials
from keras_bert_flow.files.paths import find_scheme
from keras_bert_flow.installed import check_installed

# Bound the time that a service may take to answer before work begins.
#
# The timeouts of libraries count from one byte to the next, or apply to each of many attempts, and some ask other
# services first, for credentials: a bound on the whole needs a thread that can be left behind.

ANSWER_SECONDS = 20.0

_Answer = TypeVar("_Answer")


class NoAnswerError(OSError):
    """A service that has not answered in time; its message is one line."""


def answer_within(
    ask: Callable[[], _Answer],
    service: str,
    address: str,
    remedy: str,
    seconds: float | None = None,
    spent_seconds: float = 0.0,
) -> _Answer:
    """Call a function in another thread, and return what it returns or raise what it raises.

    After the deadline its thread goes on until the end of the process, and what it returns is dropped.

    Args:
        ask: the question to the service.
        service: what is asked, to begin the error message with.
        address: of the service, without credentials.
        remedy: what to check, without a full stop.
        seconds: for the whole answer; `ANSWER_SECONDS` by default.
        spent_seconds: of these, on an earlier question.
    Raises:
        NoAnswerError: there is no answer in time.

    >>> answer_within(lambda: 200, "A server", "http://localhost", "Start it")
    200
    """
    seconds = ANSWER_SECONDS if seconds is None else seconds
    outcome: list[tuple[_Answer | None, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((ask(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(max(seconds - spent_seconds, 1.0))
    if not outcome:
        raise NoAnswerError(
            f"{service} must answer within {seconds:.0f} s. Received: {address}: no whole answer. {remedy}."
        )
    answer, error = outcome[0]
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]  # there is one where there is no error


HDFS = "hdfs"
ATTEMPTS = 4  # each includes several retries by the store's own library
FIRST_WAIT_SECONDS = 0.5  # doubled each time
# scheme → package that fsspec needs for it
PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", HDFS: "requests"}
UPLOADS_ARE_ATOMIC = ("s3", "s3a", "gs", "gcs", HDFS)  # a file appears once its last byte is uploaded
UNFINISHED_SUFFIX = ".unfinished"
_VERSIONS = ("ETag", "etag", "md5Hash", "mtime", "modificationTime")  # what stores tell of a file's version
_FINAL = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)
# Errors of botocore, aiohttp, WebHDFS and the system when no connection is made, after several attempts by each
_UNREACHED = (
    "EndpointConnectionError",
    "ConnectTimeoutError",
    "ClientConnectorError",
    "ClientConnectorDNSError",
    "ConnectionError",
)
_REMEDY = "Check the address, the credentials in the environment, and the network"
_answered: set[str] = set()  # services that have answered this process: they exist, so errors may be transient

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
        self._scheme = self._service = scheme = find_scheme(address)
        if scheme in PACKAGES:
            check_installed([PACKAGES[scheme]])
        import fsspec

        for library in ("fsspec", "s3fs", "gcsfs", "urllib3"):  # they log tracebacks of errors that are retried
            logging.getLogger(library).setLevel(logging.CRITICAL)
        if scheme not in fsspec.available_protocols():
            raise ValueError(
                f"A remote address must begin with one of {', '.join(sorted(PACKAGES))}. Received: {self.address}. "
                "Copy the files to a local disk."
            )
        self._is_atomic = scheme in UPLOADS_ARE_ATOMIC
        self._spent_seconds = 0.0  # waiting for the first answer of the service
        if scheme == HDFS:
            from keras_bert_flow.stores.hdfs import connect  # needs requests

            self._files, self._root = connect(self.address)
            self._service = self._files.url
        else:
            options = {"use_listings_cache": False, "skip_instance_cache": True}
            fsspec.get_filesystem_class(scheme)  # imports its package, which is not to be counted as waiting
            # Some packages look for credentials at once, and ask Google's metadata server for them.
            self._files, self._root = self._within(lambda: fsspec.core.url_to_fs(self.address, **options))

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
            version = next((str(entry[name]) for name in _VERSIONS if entry.get(name)), "")
            name = "" if path == self._root else path.removeprefix(prefix)
            if not name.startswith("/") and ".." not in name.split("/"):
                names[name] = (int(entry["size"]), version)
        return names

    def exists(self, name: str) -> bool:
        """Return whether there is a file or a folder of a name."""
        try:
            self._attempt(name, self._files.info, self._path(name))
        except FileNotFoundError:
            return False
        return True

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

    def rename(self, name: str, other: str) -> None:
        """Give a file another name, in one step on HDFS, where it may replace a file."""
        self._attempt(name, self._files.mv, self._path(name), self._path(other))

    def remove(self, name: str, is_folder: bool = False) -> None:
        """Remove a file, or a folder with all that is in it, if it exists, and on HDFS the folders left empty."""
        with suppress(FileNotFoundError):
            if is_folder:
                self._attempt(name, self._files.rm, self._path(name), recursive=True)
            else:
                self._attempt(name, self._files.rm_file, self._path(name))
        if self._scheme == HDFS:  # object stores have no empty folders
            for folder in PurePosixPath(name).parents[:-1]:
                if not self._attempt(str(folder), self._files.remove_empty_folder, self._path(str(folder))):
                    break

    def glob(self, pattern: str) -> Sequence[str]:
        """Return the names of the files that match a pattern."""
        found = self._attempt(pattern, self._files.glob, self._path(pattern), detail=True)
        return [path.removeprefix(self._path("")) for path, entry in sorted(found.items()) if entry["type"] == "file"]

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading.

        Raises:
            FileNotFoundError: it does not exist.
            OSError: it cannot be read.
        """
        return io.BufferedReader(self._attempt(name, self._files.open, self._path(name), "rb"))

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _within(self, ask: Callable[[], Any]) -> Any:
        """Wait for what is asked before the service has answered, for `stores.store.ANSWER_SECONDS` in all."""
        if self._service in _answered:
            return ask()
        started_at = time.monotonic()
        try:
            return answer_within(ask, "A remote address", self.address, _REMEDY, spent_seconds=self._spent_seconds)
        finally:
            self._spent_seconds += time.monotonic() - started_at

    def _knock(self) -> None:
        """Ask the service anything, so that it has answered before there is an operation that may take long.

        Raises:
            NoAnswerError: it does not answer.
            Exception: it cannot be reached, or there are no credentials.
        """
        try:
            self._files.info(self._root)
        except Exception as error:  # some are answers
            if type(error).__name__ in _UNREACHED or "Credential" in type(error).__name__:
                raise

    def _attempt(self, name: str, operation: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call an operation with retries, at most `ATTEMPTS` times; once if the service has not answered yet."""
        place = f"{self.address}/{name}".rstrip("/")
        for attempt in range(ATTEMPTS):
            try:
                if self._service not in _answered:
                    self._within(self._knock)
                result = operation(*arguments, **options)
                _answered.add(self._service)
                return result
            except FileNotFoundError:
                _answered.add(self._service)
                raise FileNotFoundError(f"A path must exist. Received: {place}, missing. Check it.") from None
            except NoAnswerError:
                raise
            except Exception as error:  # each store's library raises its own errors
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                reason = abridge(escape_controls(hide_credentials(reason)))
                is_final = isinstance(error, _FINAL) or "Credential" in type(error).__name__
                is_final |= self._service not in _answered and type(error).__name__ in _UNREACHED
                if is_final or attempt == ATTEMPTS - 1:
                    kind = PermissionError if isinstance(error, PermissionError) else OSError
                    raise kind(f"A remote address must be reachable. Received: {place}: {reason}. {_REMEDY}.") from None
                _logger.warning("%s: %s. Trying again.", place, reason)
                time.sleep(FIRST_WAIT_SECONDS * 2**attempt)
