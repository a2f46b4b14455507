"""Download the files of a folder in the background; each gets its name once its digest has been checked."""

import hashlib
import logging
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from keras_bert_flow.arrivals import arrive, expect
from keras_bert_flow.artifacts import remember_digest
from keras_bert_flow.locks import locked
from keras_bert_flow.records.manifest import FileSummary
from keras_bert_flow.stores.store import Store

STREAMS = 4  # concurrent downloads: one connection does not saturate a network
CHUNK_BYTES = 8 << 20
_logger = logging.getLogger(__name__)
PART_SUFFIX = ".part"  # of an incomplete file, which a later process resumes


class Download:
    """Background download of files from a store; an `arrivals.Carrier`.

    Args:
        store: the remote folder.
        folder: the local folder, in which the files have the same names.
        files: the files to download; digests are checked for files that have one.
    """

    def __init__(self, store: Store, folder: Path, files: Sequence[FileSummary]):
        self._store, self._folder = store, folder
        self._files = {folder / file.name: file for file in files}
        self._coming: dict[Path, Future] = {path: Future() for path in self._files}
        self._next = iter(self._files)
        self._has_told = False
        self._taking, self._stopped = threading.Lock(), threading.Event()
        # Daemons, which end with the process at any point: incomplete files are resumed later.
        self._threads = [threading.Thread(target=self._bring_all, daemon=True) for _ in range(STREAMS)]

    def start(self) -> None:
        """Start; from now on readers of the files find this carrier."""
        for path in self._files:
            expect(path, self)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop; downloaded files are complete, and the others can be resumed."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        for path, coming in self._coming.items():
            if coming.cancel():  # it has not arrived
                arrive(path)

    def digest(self, path: Path) -> str:
        return self._files[path].sha256

    def is_bringing(self, path: Path) -> bool:
        return not self._coming[path].done()

    def wait(self, path: Path) -> None:
        self._coming[path].result()

    def read(self, path: Path, start: int, end: int) -> bytes:
        coming = self._coming[path]
        if not coming.done():
            return self._store.read(self._files[path].name, start, end)
        coming.result()  # raises the error of the download, if any
        with open(path, "rb") as file:
            return os.pread(file.fileno(), end - start, start)

    def _bring_all(self) -> None:
        while not self._stopped.is_set():
            with self._taking:
                path = next(self._next, None)
            if path is None:
                return
            try:
                if self._bring(path):
                    self._coming[path].set_result(None)
            except Exception as error:  # re-raised to whoever waits for the file or reads it
                self._coming[path].set_exception(error)

    def _bring(self, path: Path) -> bool:
        """Download a file unless another process did, resuming a partial one; return whether it has arrived."""
        file, part = self._files[path], path.with_name(f".{path.name}{PART_SUFFIX}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock"), tell=self._tell):
            if not is_here(path, file):
                self._fetch(file, part)
                if self._stopped.is_set():
                    return False
                os.replace(part, path)
        if file.sha256:
            remember_digest(path, file.sha256)
        arrive(path)
        return True

    def _tell(self, line: str) -> None:
        """Say once, not for each file, that another process is downloading the same folder."""
        with self._taking:
            is_first, self._has_told = not self._has_told, True
        if is_first:
            _logger.warning("%s It is downloading %s.", line, self._store.address)

    def _fetch(self, file: FileSummary, part: Path) -> None:
        """Download the rest of a file, or all of it again if the resumed file has the wrong digest."""
        for is_last in (not part.exists(), True):
            with open(part, "ab") as target:
                while (start := target.tell()) < file.file_bytes and not self._stopped.is_set():
                    target.write(self._store.read(file.name, start, min(start + CHUNK_BYTES, file.file_bytes)))
                target.flush()
                os.fsync(target.fileno())
            if self._stopped.is_set():
                return
            with open(part, "rb") as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
            if part.stat().st_size == file.file_bytes and digest == (file.sha256 or digest):
                return
            with suppress(FileNotFoundError):
                part.unlink()
            if is_last:
                break
        raise ValueError(
            f"A file must be as its manifest says. Received: {self._store.address}/{file.name}, changed or damaged. "
            "Build the folder again, or copy it again from where it is whole."
        )


def is_here(path: Path, file: FileSummary) -> bool:
    """Return whether a file has been downloaded: it has its size, and its digest was checked at that time."""
    return path.is_file() and path.stat().st_size == file.file_bytes
