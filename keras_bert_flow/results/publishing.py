"""Publish a result once and reuse it in later runs; verify the published files that a stage reads."""

import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_bert_flow.files.documents import Read, read_file
from keras_bert_flow.files.inputs import NOTHING_HELD, InputStates
from keras_bert_flow.files.outputs import is_result
from keras_bert_flow.files.paths import check_local
from keras_bert_flow.results.artifacts import KEY_LENGTH, OpenedFiles, publishing
from keras_bert_flow.results.locks import hold_input
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
