"""Verify what a stage reads from published folders: any of their files or folders."""

from pathlib import Path

from keras_bert_flow.leases import hold_input
from keras_bert_flow.outputs import is_result
from keras_bert_flow.records.manifest import Manifest, check_file, read_manifest


def verify(*paths: str | Path) -> None:
    """Verify files, and all files below folders, against the manifest of their published folder.

    The manifest is searched for in the folder itself and its parents: a model directory lies within what `kbf pretrain`
    published. Files that no manifest lists are not verified, such as a model made by others. Repeated calls in a
    process read a file once; see `artifacts.file_digest`. Within a command, `kbf runs gc` then keeps the folders.

    Raises:
        FileNotFoundError: a listed file of a folder is missing.
        ValueError: a file or its manifest is damaged.
    """
    manifests: dict[Path, tuple[Path, Manifest] | None] = {}
    for path in map(Path, paths):
        folder = (path if path.is_dir() else path.parent).resolve()
        if folder not in manifests:
            manifests[folder] = find_manifest(folder)
        found = manifests[folder]
        if found is None:
            continue
        published, manifest = found
        hold_input(published)
        prefix = folder.relative_to(published)
        for summary in manifest.files:
            place = Path(summary.name)
            if place.is_relative_to(prefix) if path.is_dir() else place == prefix / path.name:
                check_file(published, summary)


def find_manifest(folder: Path) -> tuple[Path, Manifest] | None:
    """Return the published folder that is or contains a folder, and its manifest; None if there is none.

    Files of that name written by other programs, such as manifests of web pages, are skipped.

    Raises:
        ValueError: the manifest is damaged.
    """
    for place in (folder, *folder.parents):
        if is_result(place):
            return place, read_manifest(place)
    return None
