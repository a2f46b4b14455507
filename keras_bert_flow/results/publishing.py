"""Publish a result once and reuse it in later runs; verify the published files that a stage reads, and hold them."""

import fcntl
import os
import re
import shlex
import shutil
import socket
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_bert_flow.console.terminal import abridge, escape_controls
from keras_bert_flow.files.documents import Read, read_file
from keras_bert_flow.files.inputs import NOTHING_HELD, InputStates
from keras_bert_flow.files.outputs import is_result
from keras_bert_flow.files.paths import check_local, make_folder
from keras_bert_flow.results.artifacts import KEY_LENGTH, OpenedFiles, find_holder, locked, publishing
from keras_bert_flow.results.manifest import (
    MANIFEST,
    FileSummary,
    Manifest,
    check_file,
    check_folder,
    is_published,
    noting_cost,
    read_manifest,
    write_manifest,
)

_KEY = re.compile(rf"[0-9a-f]{{{KEY_LENGTH}}}")


@dataclass(frozen=True)
class Contents:
    """What a builder reports of the folder that it filled, for the manifest.

    Attributes:
        config: resolved settings that the result depends on.
        inputs: digest of each input by name.
        counters: the job's counts.
        files: summaries that are already known; other files are read for theirs.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    counters: Mapping[str, Any] = field(default_factory=dict)
    files: Sequence[FileSummary] = ()


@dataclass
class Work:
    """A result in the making.

    Attributes:
        folder: gets the files of the result; all processes of a run see it.
        log_folder: of files that only the first process keeps: the same folder, or a temporary one in other processes.
        contents: for the manifest; set before the work ends.
    """

    folder: Path
    log_folder: Path
    contents: Contents = field(default_factory=Contents)


@contextmanager
def published(
    output: str | Path,
    stage: str,
    key: str | Callable[[Mapping[str, Any]], str],
    resumable: bool = False,
    scratch: str | None = None,
    inputs: InputStates = NOTHING_HELD,
    revision: int | None = None,
) -> Iterator[Work | None]:
    """Yield the work that makes a result, and publish it when the block ends; None if the result exists already.

    If several processes want the same result at the same time, one builds it and the others wait for it.

    Args:
        output: the folder.
        stage: the kind of folder, such as `records`.
        key: content key of the result; or a function of the `config` in a folder's manifest, if it is known only at the
            end of the block what the result depends on.
        resumable: keep the work folder when the block fails or is killed, so that the next one can resume.
        scratch: a folder in the work folder that a resumed block needs and the result does not.
        inputs: states of the inputs from before they were digested; a resumable block checks them before it keeps
            anything to resume from.
        revision: of the stage, for the manifest.
    Raises:
        FileExistsError: `output` exists and holds something else, or the result with a file missing or damaged.
        OSError: the location cannot be written.
        ValueError: `output` is not on a local disk, or is named by another key, or an input has changed.
    """
    output = check_local(output)
    find_key = key if callable(key) else lambda config: key
    if _is_published(output, find_key):
        yield None
        return
    _refuse_damaged(output, find_key)
    check_key(output, stage, find_key)
    work: Work | None = None
    try:
        with publishing(output, resumable) as folder:
            if not _is_published(folder, find_key):  # it is if a kill came between the manifest and the rename
                work = Work(folder, folder)
                with noting_cost(folder):
                    yield work
                inputs.check()
                final = find_key(work.contents.config)
                write_manifest(folder, stage, final, **vars(work.contents), without=scratch, revision=revision)
            if scratch:
                shutil.rmtree(folder / scratch, ignore_errors=True)
    except FileExistsError:
        if not _is_published(output, find_key):  # it is if another process made the result while this one waited
            raise
    if work is None:
        yield None


def publish(
    output: str | Path,
    stage: str,
    key: str | Callable[[Mapping[str, Any]], str],
    build: Callable[[Path], Contents],
    resumable: bool = False,
    scratch: str | None = None,
    inputs: InputStates = NOTHING_HELD,
    revision: int | None = None,
) -> Path:
    """Return the folder of a result, after `build(work folder)` if it does not exist yet; see `published`."""
    with published(output, stage, key, resumable, scratch, inputs, revision) as work:
        if work is not None:
            work.contents = build(work.folder)
    return check_local(output)


def check_key(output: str | Path, stage: str, find_key: Callable[[Mapping[str, Any]], str]) -> None:
    """Raise ValueError if the folder of a run's stage, `<stage>/<key>`, is to hold a result of another key.

    `kbf run` names the folder, and then starts the command that makes it.
    """
    folder = Path(output)
    if folder.parent.name != stage or not _KEY.fullmatch(folder.name):
        return
    if (key := find_key({})) != folder.name:
        raise ValueError(
            f"A folder named by a key must hold its result. Received: {folder}, for the result {key}: an input or the "
            "program has changed since the key was found. Run again, or choose another name."
        )


def _refuse_damaged(folder: Path, find_key: Callable[[Mapping[str, Any]], str]) -> None:
    """Raise FileExistsError if a folder is or was the result, but is damaged."""
    if not (folder / MANIFEST).is_file():
        return
    try:
        manifest = read_manifest(folder)
        if manifest.key == find_key(manifest.config):
            check_folder(folder)
    except (FileNotFoundError, ValueError) as error:
        raise FileExistsError(f"{error} To have it made here, move this folder away first.") from None


def _is_published(folder: Path, find_key: Callable[[Mapping[str, Any]], str]) -> bool:
    try:
        config = read_manifest(folder).config
    except (FileNotFoundError, ValueError):
        return False
    return is_published(folder, find_key(config))


# Verify what a stage reads from published folders: any of their files or folders.


def verify(*paths: str | Path, files: OpenedFiles | None = None) -> None:
    """Verify files, and all files below folders, against the manifest of their published folder.

    The manifest is searched for in the folder itself and its parents: a model directory lies within what `kbf pretrain`
    published. Files that no manifest lists are not verified, such as a model made by others. Repeated calls in one
    process read a file once; see `file_digest`. Within a command, `kbf runs gc` then keeps the folders.

    Args:
        files: reads the files, each opened once; by default they are opened here.
    Raises:
        FileNotFoundError: a listed file of a folder is missing.
        ValueError: a file or its manifest is damaged.
    """
    manifests: dict[Path, tuple[Path, Manifest] | None] = {}
    for path in map(Path, paths):
        folder = (path if path.is_dir() else path.parent).resolve()
        if folder not in manifests:
            manifests[folder] = find_manifest(folder, files.read if files else None)
        found = manifests[folder]
        if found is None:
            continue
        published, manifest = found
        hold_input(published)
        prefix = folder.relative_to(published)
        for summary in manifest.files:
            place = Path(summary.name)
            if place.is_relative_to(prefix) if path.is_dir() else place == prefix / path.name:
                check_file(published, summary, files=files)


def find_manifest(folder: Path, read: Read | None = None) -> tuple[Path, Manifest] | None:
    """Return the published folder that is or contains a folder, and its manifest; None if there is none.

    Files of that name written by other programs, such as manifests of web pages, are skipped.

    Raises:
        ValueError: the manifest is damaged.
    """
    for place in (folder, *folder.parents):
        if is_result(place, read):
            return place, read_manifest(place, read or read_file)
    return None


# Leases: what running commands need from a folder of results, so that `kbf runs gc` keeps it.
#
# A run holds a lease on its folder of results: a locked file that lists the keys of the results that it has found,
# makes or plans to use, or says that the run does not know them yet. A command holds the published folders that it
# reads: a shared lock on the manifest of each, which needs no right to write. These are locks of the system, which end
# with their process. Before a result is removed, the lock `PAUSE` keeps runs from finding it, or counting on it.

LEASE = "KBF_LEASE"  # environment variable: the lease of the run that a process is part of
PAUSE = ".gc.lock"
UNSEEN_SECONDS = (
    86400.0  # how long the lease of another machine counts whose lock is not seen, as on some network disks
)
_NAME = re.compile(r"\.run-[0-9a-f]{32}\.lease")
_READERS = re.compile(r"\d+: FLOCK +ADVISORY +READ +(\d+) [0-9a-f]+:[0-9a-f]+:(\d+) ")  # a line of /proc/locks

_runs: list["RunLease"] = []  # of this process, the newest last
_readings: list[dict[Path, int]] = []  # folder → descriptor of its manifest, for each block of `holding_inputs`


@dataclass(frozen=True)
class Needs:
    """What a run that is alive needs.

    Attributes:
        holder: description of its process.
        keys: of the results that it needs.
        is_open: it does not know yet what else it needs.
    """

    holder: str
    keys: frozenset[str]
    is_open: bool


class RunLease:
    """The part of a process in the lease of a run.

    Args:
        path: the lease, to which processes append lines: `+N`, process N does not know yet what it needs, `-N`, it
            does, and keys.
    """

    def __init__(self, path: Path):
        self._path, self._known = path, set[str]()
        self._is_open = True
        self._append(f"+{os.getpid()}")

    def add(self, key: str) -> None:
        if key not in self._known:
            self._known.add(key)
            self._append(key)

    def close(self) -> None:
        """Hold only the keys that were added, and no longer everything."""
        if self._is_open:
            self._is_open = False
            self._append(f"-{os.getpid()}")

    def _append(self, line: str) -> None:
        with suppress(OSError):  # a full disk, or a folder that was removed
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
            try:
                os.write(descriptor, f"\n{line}".encode())
            finally:
                os.close(descriptor)
            if not line.startswith("-"):  # a removal that was decided before is completed before anything is looked up
                with locked(self._path.with_name(PAUSE)):
                    pass


@contextmanager
def holding_results(store: Path) -> Iterator[RunLease | None]:
    """Hold a lease on everything in a folder of results, until its `close`, and then on the keys that it was given.

    The processes that are started within the block may take part in it. Nothing is held if the folder may not be
    written: then nothing is made in it either.
    """
    given = os.environ.get(LEASE)
    store = Path(os.path.realpath(store))
    with ExitStack() as held:
        if given and Path(given).parent == store and find_holder(Path(given)) is not None:
            path = Path(given)
        else:
            path = store / f".run-{uuid.uuid4().hex}.lease"
            if not store.is_dir():
                held.callback(_remove_empty, store)  # of a run that was refused before its first stage
            try:
                make_folder(store)
                held.enter_context(locked(path))
            except OSError:
                yield None
                return
            os.environ[LEASE] = str(path)
            held.callback(os.environ.pop, LEASE, None)
        lease = RunLease(path)
        _runs.append(lease)
        held.callback(_runs.remove, lease)
        held.callback(lease.close)
        yield lease


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def hold_key(key: str) -> None:
    """Hold a result of this process' run, whether it exists or not."""
    for lease in _runs[-1:]:
        lease.add(key)


def close_plan() -> None:
    """Say that this process' run has found what exists of the results that it needs."""
    for lease in _runs[-1:]:
        lease.close()


@contextmanager
def holding_inputs() -> Iterator[None]:
    """Hold the published folders that are verified within the block, until it ends."""
    held: dict[Path, int] = {}
    _readings.append(held)
    try:
        yield
    finally:
        _readings.remove(held)
        for descriptor in held.values():
            os.close(descriptor)


def hold_input(folder: Path) -> None:
    """Hold a published folder that is read, within a block of `holding_inputs`."""
    if not _readings or folder in _readings[-1]:
        return
    with suppress(OSError):  # file systems without locks
        descriptor = os.open(folder / MANIFEST, os.O_RDONLY)
        _readings[-1][folder] = descriptor
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def find_needs(store: Path) -> list[Needs]:
    """Return what each run that is alive needs from a folder of results, or from the one around it."""
    found = []
    for path in (*store.glob(".run-*.lease"), *store.absolute().parent.glob(".run-*.lease")):
        if not _NAME.fullmatch(path.name):
            continue
        is_held = find_holder(path) is not None
        try:
            holder, *lines = path.read_text(errors="replace").split("\n")
            is_ours = f" on {socket.gethostname()} since " in holder
            is_held = is_held or (not is_ours and time.time() - path.stat().st_mtime < UNSEEN_SECONDS)
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                continue
            holder, lines = "a process whose lease you may not read", []
        if not is_held:
            with suppress(OSError), locked(path, wait=False):  # which removes it: its process is dead
                continue
        is_open = {line[1:]: line[0] == "+" for line in lines if line[:1] in ("+", "-")}
        keys = frozenset(line for line in lines if line[:1] not in ("", "+", "-"))
        holder = abridge(escape_controls(holder)) or "another process"
        found.append(Needs(holder, keys, not is_open or any(is_open.values())))
    return found


def find_reader(folder: Path) -> str | None:
    """Return a description of a process that reads a published folder; None if none holds it."""
    try:
        with open(folder / MANIFEST, "rb") as file:
            inode = os.fstat(file.fileno()).st_ino
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(OSError):
            for process, locked_inode in _READERS.findall(Path("/proc/locks").read_text()):
                if int(locked_inode) == inode:
                    words = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace").split("\0")
                    command = shlex.join(word for word in words if word)
                    return abridge(escape_controls(f"process {process}: {command}"))
        return "another process"
    except OSError:
        pass
    return None
