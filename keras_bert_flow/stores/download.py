"""Bring the files of a folder to this disk in the background, each under its name once its digest was compared."""

import hashlib
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

STREAMS = 4  # files at a time: one connection does not fill a network
CHUNK_BYTES = 8 << 20
PART_SUFFIX = ".part"  # of a file that is not whole, from which a later process goes on


class Download:
    """Files on their way from a store; see `arrivals.Carrier`.

    Args:
        store: the folder they come from.
        folder: where they are to lie, with their names there.
        files: which; their digests are compared where they have one.
    """

    def __init__(self, store: Store, folder: Path, files: Sequence[FileSummary]):
        self._store, self._folder = store, folder
        self._files = {folder / file.name: file for file in files}
        self._coming: dict[Path, Future] = {path: Future() for path in self._files}
        self._next = iter(self._files)
        self._taking, self._stopped = threading.Lock(), threading.Event()
        # They end with the process, wherever they are: what is not whole is gone on with.
        self._threads = [threading.Thread(target=self._bring_all, daemon=True) for _ in range(STREAMS)]

    def start(self) -> None:
        """Begin; readers of the files find this carrier from now on."""
        for path in self._files:
            expect(path, self)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End, with the files that are here whole and the others to go on from."""
        self._stopped.set()
        for thread in self._threads:
            thread.join()
        for path, coming in self._coming.items():
            if coming.cancel():  # it has not come
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
        coming.result()  # raises what kept it from coming
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
            except Exception as error:  # for whoever waits for the file or reads it
                self._coming[path].set_exception(error)

    def _bring(self, path: Path) -> bool:
        """Fetch a file unless another process did, going on where one left it; tell whether it is here."""
        file, part = self._files[path], path.with_name(f".{path.name}{PART_SUFFIX}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with locked(path.with_name(f".{path.name}.lock"), tell=lambda line: None):
            if not is_here(path, file):
                self._fetch(file, part)
                if self._stopped.is_set():
                    return False
                os.replace(part, path)
        if file.sha256:
            remember_digest(path, file.sha256)
        arrive(path)
        return True

    def _fetch(self, file: FileSummary, part: Path) -> None:
        """Fetch the rest of a file, or all of it once more where the rest does not make it whole."""
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
    """Tell whether a file was brought before: it then had its digest."""
    return path.is_file() and path.stat().st_size == file.file_bytes
