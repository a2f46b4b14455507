"""Find the results in a folder: whole, damaged, or left by an interrupted run."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from keras_bert_flow.locks import find_holder
from keras_bert_flow.outputs import MANIFEST
from keras_bert_flow.records.manifest import Manifest, check_folder, read_manifest
from keras_bert_flow.stages.registry import STAGES

State = Literal["whole", "damaged", "unfinished", "set aside", "removed"]
UNKNOWN = "?"
REPORT_LINKS, MODEL_LINK = ("report.html", "report.md"), "model"  # of the newest run of a name; see `lineage.newest`
REMOVED_SUFFIX = ".removed"  # of a folder that is being removed; see `lineage.collection`
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

    @property
    def lock(self) -> Path:
        """The file that is locked while the folder is built; see `artifacts.publishing`."""
        return self.output.with_name(f".{self.output.name}.lock")


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
    files = list(_list_files(folder))
    changed_at = max((status.st_mtime for _, status in files), default=folder.lstat().st_mtime)
    if state == "whole":
        changed_at = (folder / MANIFEST).stat().st_mtime
    named = next((place.name for place in (folder.parent, folder) if place.name in STAGES), UNKNOWN)
    stage = manifest.stage if manifest else named
    size = sum(status.st_size for _, status in files)
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


def _list_files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                yield name, os.lstat(os.path.join(place, name))
            except OSError:  # removed meanwhile
                continue
