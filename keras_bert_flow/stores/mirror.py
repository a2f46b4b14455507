"""Keep a copy of a folder that is being worked in, from which the work goes on elsewhere."""

import logging
import threading
from contextlib import suppress
from pathlib import Path

from keras_bert_flow.stores.store import Store

SYNC_SECONDS = 15.0
SMALL_BYTES = 8 << 20  # read whole before it is uploaded: it may grow meanwhile
_GROWING = ".jsonl"  # logs, which must be there before a checkpoint whose steps they tell of

_logger = logging.getLogger(__name__)


class Mirror:
    """Copies of the files of a folder at another place, brought up to date in the background.

    Files are uploaded in the order in which they were written: a file that says that others are whole comes after
    them, as it did here. A kill at any moment leaves what a kill would have left here, a little earlier.

    Args:
        work: the folder; it may not be there yet. Hidden files are not copied.
        store: where the copies go.
    """

    def __init__(self, work: Path, store: Store):
        self._work, self._store = work, store
        self._uploaded: dict[str, tuple[int, int]] = {}  # name → size and time of what is there
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def start(self) -> None:
        """Begin; what is there from before is removed unless it is here as well."""
        with suppress(FileNotFoundError):
            self._uploaded = dict.fromkeys(self._store.list(), (0, 0))
        self._thread.start()

    def stop(self) -> None:
        """End, with everything up to date.

        Raises:
            OSError: the place cannot be reached.
        """
        self._ended.set()
        self._thread.join()
        self.sync()

    def sync(self) -> None:
        """Upload what is new, then remove what is gone here."""
        if not self._work.is_dir():  # not begun, or published: what is there stays
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
        """Return the files, those written first before others, each with its size and time."""
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
