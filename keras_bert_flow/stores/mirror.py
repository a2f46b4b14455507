"""Mirror a work folder to a remote place, from which another machine can resume the work."""

import logging
import threading
from contextlib import suppress
from pathlib import Path

from keras_bert_flow.stores.store import Store

SYNC_SECONDS = 15.0
SMALL_BYTES = 8 << 20  # files up to this size are read before uploading, as they may grow meanwhile
_GROWING = ".jsonl"  # logs, which must be uploaded before a checkpoint whose steps they describe

_logger = logging.getLogger(__name__)


class Mirror:
    """Remote copy of the files of a folder, synchronised in the background.

    Files are uploaded in the order in which they were written: a file that marks others as complete comes after them,
    as it did locally. A kill at any moment leaves a copy of the state of the local folder at a slightly earlier time.

    Args:
        work: the folder; it need not exist yet. Hidden files are not copied.
        store: the destination of the copies.
    """

    def __init__(self, work: Path, store: Store):
        self._work, self._store = work, store
        self._uploaded: dict[str, tuple[int, int]] = {}  # name → size and time of the uploaded version
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        """Start; remote files from earlier are removed unless they also exist locally."""
        with suppress(FileNotFoundError):
            self._uploaded = dict.fromkeys(self._store.list(), (0, 0))
        self._thread.start()

    def stop(self) -> None:
        """Stop, after a final synchronisation.

        Raises:
            OSError: the place cannot be reached.
        """
        self._ended.set()
        self._thread.join()
        self.sync()

    def sync(self) -> None:
        """Upload new and changed files, then remove files that no longer exist locally."""
        if not self._work.is_dir():  # not started, or published: the remote files stay
            return
        listed = self._list()
        for name, version in listed:
            if self._uploaded.get(name) == version:
                continue
            with suppress(FileNotFoundError):  # an older checkpoint, removed since
                path = self._work / name
                if version[0] <= SMALL_BYTES:
                    self._store.write(name, path.read_bytes())
                else:
                    self._store.upload(path, name)
                self._uploaded[name] = version
        for name in sorted(self._uploaded.keys() - {name for name, _ in listed}, reverse=True):
            self._store.remove(name)
            del self._uploaded[name]

    def _follow(self) -> None:
        while not self._ended.wait(SYNC_SECONDS):
            try:
                self.sync()
            except OSError as error:
                _logger.warning("%s The next copy is made in %.0f seconds.", error, SYNC_SECONDS)

    def _list(self) -> list[tuple[str, tuple[int, int]]]:
        """Return the files in the order of writing, logs first, each with its size and time."""
        found = []
        for path in self._work.rglob("*"):
            name = path.relative_to(self._work)
            if any(part.startswith(".") for part in name.parts):
                continue
            with suppress(FileNotFoundError):
                if path.is_file():
                    status = path.stat()
                    found.append((path.suffix != _GROWING, status.st_mtime_ns, name.as_posix(), status.st_size))
        return [(name, (size, time)) for _, time, name, size in sorted(found)]
