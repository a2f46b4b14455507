"""Find the results in a folder (whole, damaged or unfinished), and which were made from which."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal

from keras_bert_flow.files.outputs import MANIFEST
from keras_bert_flow.results.artifacts import find_holder
from keras_bert_flow.results.manifest import Manifest, check_folder, manifest_digest, read_manifest
from keras_bert_flow.results.stages import STAGES

State = Literal["whole", "damaged", "unfinished", "set aside", "removed"]
UNKNOWN = "?"
REPORT_LINKS, MODEL_LINK = ("report.html", "report.md"), "model"  # of the newest run of a name; see `results.choosing`
REMOVED_SUFFIX = ".removed"  # of a folder that is being removed; see `results.choosing`
_HIDDEN = re.compile(r"\.(?P<name>.+)\.(?P<kind>work|removed)")
_SET_ASIDE = re.compile(r"(?P<name>.+)\.damaged-[0-9]+")


@dataclass(frozen=True)
class Result:
    """A folder that a stage published, or the work folder of a stage.

    Attributes:
        folder: its path.
        stage: stage in the manifest; without one, the name of the parent folder if that is a stage, else `?`.
        key: content key; without a manifest, the name of the folder.
        state: `set aside` is a damaged folder that `kbf run` renamed, `removed` one whose removal was interrupted.
        fault: what is wrong with it.
        manifest: None if missing or unreadable.
        file_bytes: total size of its files.
        changed_at: when it was published, seconds since 1970; if not whole, when a file in it last changed.
        owner: description of the process that is making it; None if there is none.
        is_linked: a symbolic link leads to it.
        named_by: link of the newest run of a name that leads into it, if there is one.
    """

    folder: Path
    stage: str
    key: str
    state: State
    fault: str
    manifest: Manifest | None
    file_bytes: int
    changed_at: float
    owner: str | None
    is_linked: bool = False
    named_by: Path | None = None

    @property
    def name(self) -> str:
        """The name of the run or task in the manifest, else empty."""
        config = self.manifest.config if self.manifest else {}
        task = config.get("task")
        found = config.get("name") or (task.get("name") if isinstance(task, dict) else None)
        return found if isinstance(found, str) else ""

    @property
    def output(self) -> Path:
        """The path of the folder once it is published."""
        match = _HIDDEN.fullmatch(self.folder.name)
        return self.folder.with_name(match["name"]) if match else self.folder


def find_results(folder: str | Path) -> list[Result]:
    """Return the results in a folder and its subfolders, sorted by stage and then by age, the oldest first.

    Symbolic links are followed, and a result to which several paths lead is returned once. What cannot be read, such as
    a link that leads nowhere or a folder of somebody else's, is returned as damaged.

    Raises:
        FileNotFoundError: there is no such folder.
        ValueError: the folder is a result itself.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(
            f"Results must be in a folder, such as `runs` of a configuration. Received: {folder}. Check the path."
        )
    if (folder / MANIFEST).is_file():
        raise ValueError(
            f"A folder of results must hold results, and not be one. Received: {folder}, with {MANIFEST}. "
            f"Give {store_of(folder)}"
        )
    order = {name: number for number, name in enumerate(STAGES)}
    places: dict[str, list[Path]] = {}
    for path in _list_places(folder):
        places.setdefault(os.path.realpath(path), []).append(path)
    links = {str(parent): link for link in find_links(folder) for parent in Path(os.path.realpath(link)).parents}
    found = [
        replace(
            read_result(min(paths, key=os.path.islink)),
            is_linked=any(map(os.path.islink, paths)),
            named_by=links.get(place),
        )
        for place, paths in places.items()
    ]
    return sorted(found, key=lambda result: (order.get(result.stage, len(order)), result.changed_at, result.key))


def find_links(store: Path) -> list[Path]:
    """Return the links to the newest report and model of each name in a store, also those that lead nowhere."""
    found = []
    for folder in _list_folders(store):
        if folder.name not in STAGES and not folder.is_symlink() and not _is_result(folder):
            links = (folder / name for name in (*REPORT_LINKS, MODEL_LINK))
            found += [link for link in links if os.path.islink(link)]
    return found


def store_of(result: Path) -> Path:
    """Return the store of a result: the folder that holds it and the results it was made from."""
    parent = result.absolute().parent
    return parent.parent if parent.name in STAGES else parent


def read_result(folder: Path) -> Result:
    """Read one result folder: its manifest, and whether every file exists with its size."""
    hidden, aside = _HIDDEN.fullmatch(folder.name), _SET_ASIDE.fullmatch(folder.name)
    manifest, fault = _read_manifest(folder)
    state: State = "whole"
    if hidden:
        state = "unfinished" if hidden["kind"] == "work" else "removed"
        fault = "" if state == "removed" else "not finished"
    elif aside:
        state = "set aside"
    elif fault:
        state = "damaged"
    renamed = hidden or aside
    name = renamed["name"] if renamed else folder.name
    files: list[os.stat_result] = []
    for place, _, names in os.walk(folder):
        for file in names:
            with suppress(OSError):  # removed meanwhile
                files.append(os.lstat(os.path.join(place, file)))
    changed_at = max((status.st_mtime for status in files), default=folder.lstat().st_mtime)
    if state == "whole":
        changed_at = (folder / MANIFEST).stat().st_mtime
    named = next((one.name for one in (folder.parent, folder) if one.name in STAGES), UNKNOWN)
    stage = manifest.stage if manifest else named
    size = sum(status.st_size for status in files)
    owner = find_holder(folder.with_name(f".{name}.lock"))
    return Result(folder, stage, manifest.key if manifest else name, state, fault, manifest, size, changed_at, owner)


def _list_places(folder: Path) -> Iterator[Path]:
    """Yield the folders that are, or will become, results: those in a folder and its subfolders."""
    for child in _list_folders(folder):
        if _is_result(child):
            yield child
        elif not child.name.startswith("."):
            try:
                inner = _list_folders(child)
            except OSError:  # a link that leads nowhere, or a folder that may not be read: it may hold results
                yield child
                continue
            yield from (place for place in inner if _is_result(place) or child.name in STAGES)


def _is_result(folder: Path) -> bool:
    is_named = _HIDDEN.fullmatch(folder.name) or _SET_ASIDE.fullmatch(folder.name)
    return bool(is_named) or os.path.lexists(folder / MANIFEST)


def _list_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, and the links in it that lead to one or nowhere."""
    return sorted(path for path in folder.iterdir() if os.path.isdir(path) or not os.path.exists(path))


def _read_manifest(folder: Path) -> tuple[Manifest | None, str]:
    """Return the manifest, or None if it cannot be read, and a description of what is wrong with the folder."""
    manifest = None
    try:
        if not os.path.exists(folder):
            return None, "a link that leads nowhere"
        if not os.access(folder, os.R_OK | os.X_OK):
            return None, "you may not read it"
        manifest = read_manifest(folder)
        check_folder(folder, digests=False)
    except (OSError, ValueError) as error:
        return manifest, str(error).partition("Received: ")[2].partition(". ")[0] or str(error)
    return manifest, ""


# Find which result was made from which, by matching the input digests of manifests with the files of other results.
#
# An input is identified by its content in three ways: a file by its sha256, a published folder by the digests of its
# files as JSON, and a model directory by the `name:sha256` of its files.

SHA256 = re.compile("[0-9a-f]{64}")
TOKENIZER_FILES = ("vocab.txt", "tokenizer.json")
TOKENIZER = "vocabulary"  # records hold a copy of it, and their manifest may not list it as an input


@dataclass(frozen=True)
class Source:
    """An input of a result, and the results that hold it.

    Attributes:
        name: name of the input in the manifest.
        digest: digest of its content, as in the manifest.
        results: results with this content of the earliest stage that has any, oldest first; empty if it is external.
        part: which part of these results: a file, a model directory, or "" for the whole folder.
    """

    name: str
    digest: str
    results: tuple[Result, ...] = ()
    part: str = ""


def list_sources(result: Result, results: Sequence[Result]) -> list[Source]:
    """Return the inputs of a result, in the order of its manifest; empty if it has no manifest.

    The tokenizer that records hold a copy of is one of them.
    """
    if result.manifest is None:
        return []
    inputs = [*result.manifest.inputs.items()]
    if result.stage == "records" and TOKENIZER not in result.manifest.inputs:
        digests = {file.name: file.sha256 for file in result.manifest.files}
        inputs += [(TOKENIZER, digests[name]) for name in TOKENIZER_FILES if name in digests]
    return [_find_source(result, name, digest, results) for name, digest in inputs]


def walk_sources(result: Result, results: Sequence[Result]) -> Iterator[tuple[Result, list[Source]]]:
    """Yield a result and everything that it was made from, each once and after its own sources."""
    seen: set[Path] = set()

    def walk(made: Result) -> Iterator[tuple[Result, list[Source]]]:
        seen.add(made.folder)
        sources = list_sources(made, results)
        for source in sources:
            for held in source.results[:1]:
                if held.folder not in seen:
                    yield from walk(held)
        yield made, sources

    return walk(result)


def list_uses(results: Sequence[Result]) -> dict[Path, list[Result]]:
    """Return, for the folder of each result, the results made directly from it."""
    uses: dict[Path, list[Result]] = {result.folder: [] for result in results}
    for result in results:
        for folder in dict.fromkeys(held.folder for source in list_sources(result, results) for held in source.results):
            uses[folder].append(result)
    return uses


def find_source(folder: Path, name: str) -> Path | None:
    """Return the folder in the same store that an input of a result came from; None if there is none."""
    results = find_results(store_of(folder))
    for source in list_sources(read_result(folder), results):
        if source.name == name and source.results:
            return source.results[0].folder
    return None


def _find_source(result: Result, name: str, digest: str, results: Sequence[Result]) -> Source:
    order = {stage: number for number, stage in enumerate(STAGES)}
    own = order.get(result.stage, len(order))
    is_file = SHA256.fullmatch(digest) is not None
    holders: list[tuple[int, str, Result]] = []
    for other in results:
        place = order.get(other.stage, len(order))
        # A copy in a result of a later stage is no source, nor is a file of the same stage; a model of it may be.
        if other.manifest is None or other.folder == result.folder or place > own or (place == own and is_file):
            continue
        part = find_part(digest, other.manifest)
        if part is not None:
            holders.append((place, part, other))
    if not holders:
        return Source(name, digest)
    # A result continued from a model of the same stage has that as its source; others come from the earliest stage.
    first = min(place for place, _, _ in holders)
    chosen = [(part, other) for place, part, other in holders if place == first]
    return Source(name, digest, tuple(other for _, other in chosen), chosen[0][0])


def find_part(digest: str, manifest: Manifest) -> str | None:
    """Return the part of a result with this content: a file, a folder in it, or "" for all of it; None if none has."""
    if digest.startswith("["):
        return "" if digest == manifest_digest(manifest) else None
    if SHA256.fullmatch(digest):
        return next((file.name for file in manifest.files if file.sha256 == digest), None)
    wanted = [entry.rpartition(":")[::2] for entry in digest.split(",")]
    if not all(name and SHA256.fullmatch(sha256) for name, sha256 in wanted):
        return None
    files = {file.name: file.sha256 for file in manifest.files}
    folders = {str(folder) for name in files for folder in PurePosixPath(name).parents}
    for prefix in sorted("" if folder == "." else f"{folder}/" for folder in folders):
        if all(files.get(f"{prefix}{name}") == sha256 for name, sha256 in wanted):
            return prefix.rstrip("/")
    return None
