"""Build a result locally and publish it at a remote place, mirroring the unfinished work; the manifest goes last.

Meanwhile its checkpoints are copied to `.work` at that place, so that another machine can resume the work.
"""

import hashlib
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from keras_bert_flow.files.outputs import work_folder
from keras_bert_flow.files.paths import find_address, find_scheme, refuse_link
from keras_bert_flow.results.artifacts import locked, write_atomically
from keras_bert_flow.results.manifest import MANIFEST, read_manifest
from keras_bert_flow.stores.fetching import OUTPUTS, cache_root, fetch
from keras_bert_flow.stores.store import HDFS, Store

# Mirror a work folder to a remote place, from which another machine can resume the work.

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


WORK = ".work"  # subfolder of an output that is being built
SHARED_SCHEMES = ("s3", "gs", HDFS)  # schemes to which Beam jobs and `Store` write
OWNER = "owner"  # file in it that names the newest of its folders
# Environment variables that show that there are several processes: TensorFlow's and JAX's, and below torchrun's
LAUNCHED = ("TF_CONFIG", "KERAS_DISTRIBUTION_JOB_ADDRESSES")
PROCESSES, PROCESSES_HERE, NUMBER = "WORLD_SIZE", "LOCAL_WORLD_SIZE", "RANK"
KEY_LENGTH = 16


@contextmanager
def made_at(output: str | Path, together: bool = False) -> Iterator[Path]:
    """Yield the local folder in which to make a result, and publish it when the block ends.

    For a local output, that is the output itself. For a remote one, work begun on another machine is downloaded first,
    and an existing result is downloaded for the block to check.

    Args:
        output: the folder, local or remote.
        together: whether several processes may make it; only the first publishes in its block, after all have entered
            theirs, as in `training.processes`. For a remote output they must be torchrun's, on one machine.
    Raises:
        FileExistsError: another file or result is there.
        OSError: the place cannot be reached or written, or another process has taken over the work.
    """
    address = find_address(output)
    if address is None:
        yield Path(output)
        return
    store = Store(address)
    names = _list_names(store)
    if MANIFEST in names:
        _remove_work(store, names)
        yield from _show_finished(address)
        return
    if names and not any(name.startswith(f"{WORK}/") for name in names):
        raise FileExistsError(
            f"The output must be new. Received: {address}, which holds {min(names)}. Choose another place."
        )
    is_first = _is_first(address, together)
    place = cache_root() / OUTPUTS / hashlib.sha256(store.address.encode()).hexdigest()[:KEY_LENGTH]
    made = place.joinpath(*Path(address).parts[-2:])  # named as at the address, as the stage and key of a run may be
    if not is_first:
        yield made  # the first process downloads, uploads and removes it
        return
    yield from _make(store, place, made)


def check_writable(address: str) -> None:
    """Check that files can be written below an address, leaving nothing behind.

    Raises:
        OSError: the place cannot be reached or written.
        ValueError: results cannot be published at the scheme, or its package is not installed.
    """
    if find_scheme(address) not in SHARED_SCHEMES:
        raise ValueError(
            f"Results must be on a local disk or at one of {', '.join(f'{scheme}://' for scheme in SHARED_SCHEMES)}. "
            f"Received: {address}. Choose one of these."
        )
    store, probe = Store(address), f"{WORK}/{uuid.uuid4().hex}"
    store.write(probe, b"-")
    store.remove(probe)


def _show_finished(address: str) -> Iterator[Path]:
    finished = fetch(address)
    try:
        yield finished
    except FileExistsError as error:
        raise FileExistsError(str(error).replace(str(finished), address)) from None


def _make(store: Store, place: Path, output: Path) -> Iterator[Path]:
    """Yield the folder to build, in the local place of a store, mirror its work folder, and publish the result."""
    refuse_link(place)
    place.mkdir(parents=True, exist_ok=True)
    with locked(place / ".lock"):
        if MANIFEST in _list_names(store):  # another process of this machine has finished it
            shutil.rmtree(place)
            yield from _show_finished(store.address)
            return
        try:
            owner = _take_over(store, place, output)
        except OSError:
            if not output.exists() and not work_folder(output).exists():  # nothing to resume or publish
                shutil.rmtree(place)
            raise
        mirror = Mirror(work_folder(output), Store(f"{store.address}/{WORK}/{owner}"))
        mirror.start()
        try:
            yield output
        except BaseException:  # also on a signal: the state to resume from is uploaded first
            with suppress(OSError):
                mirror.stop()
                if not output.exists() and not work_folder(output).exists():  # refused before any work
                    _remove_work(store, _list_names(store))
                    shutil.rmtree(place)
            raise
        mirror.stop()
        if (found := _read_owner(store)) != owner:
            raise OSError(
                f"An output must be made by one process at a time. Received: {store.address}, which "
                f"another {'has begun to make' if found else 'has made, or removed'}. Let it finish, or run again."
            )
        _publish(store, output)
        shutil.rmtree(place)


def _take_over(store: Store, place: Path, output: Path) -> str:
    """Take over the newest state of the work, local and remote, and return the owner name it is now signed with.

    On the same machine, a process continues under the previous process's name. On another machine, it gets its own name
    and copies, so that an earlier process that is still alive cannot mix its files with these.
    """
    signature, work = place / OWNER, work_folder(output)
    last, found = signature.read_text() if signature.is_file() else None, _read_owner(store)
    if found is not None and found == last:
        return found
    owner = uuid.uuid4().hex
    if found is not None:
        for path in (work, output):
            shutil.rmtree(path, ignore_errors=True)
        copies = Store(f"{store.address}/{WORK}/{found}")
        for name in sorted(_list_names(copies)):
            if not PurePosixPath(name).name.startswith("."):  # hidden ones are unfinished
                copies.download(name, work / name)
        Mirror(work, Store(f"{store.address}/{WORK}/{owner}")).sync()
    store.write(f"{WORK}/{OWNER}", owner.encode())
    write_atomically(signature, owner.encode())
    _remove_work(store, _list_names(store), kept=owner)
    return owner


def _is_first(address: str, together: bool) -> bool:
    """Return whether this process is the one that publishes.

    Raises:
        ValueError: it is one of several processes that may not make a result together, or do not all see this disk.
    """
    processes, here = (int(os.environ.get(name, "1")) for name in (PROCESSES, PROCESSES_HERE))
    if any(name in os.environ for name in LAUNCHED) or processes > (here if together else 1):
        raise ValueError(
            f"A remote output must be made by one process, or by torchrun's on one machine in pre-training. "
            f"Received: {address}, in one of several. Give a folder that all of them see, and copy it in the end."
        )
    return processes == 1 or os.environ.get(NUMBER, "0") == "0"


def _publish(store: Store, output: Path) -> None:
    """Upload a result whose folder has its manifest."""
    manifest = read_manifest(output)
    for file in manifest.files:
        store.upload(output / file.name, file.name)
    kept = {file.name for file in manifest.files}
    for name in _list_names(store):
        if name not in kept and not name.startswith(f"{WORK}/"):  # left by an earlier attempt that was killed here
            store.remove(name)
    store.write(MANIFEST, (output / MANIFEST).read_bytes())
    _remove_work(store, _list_names(store))


def _remove_work(store: Store, names: set[str], kept: str | None = None) -> None:
    """Remove the mirrored work, except that of the owner `kept`."""
    for name in sorted(names):
        if name.startswith(f"{WORK}/") and (kept is None or name.split("/")[1] not in (OWNER, kept)):
            store.remove(name)


def _read_owner(store: Store) -> str | None:
    try:
        return store.read(f"{WORK}/{OWNER}").decode()
    except FileNotFoundError:
        return None


def _list_names(store: Store) -> set[str]:
    try:
        return {*store.list()}
    except FileNotFoundError:
        return set()
