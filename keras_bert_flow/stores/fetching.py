"""Fetch remote folders to local paths, whole or only their manifests; each is downloaded once and verified."""

import hashlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import NoReturn

from keras_bert_flow.files.inputs import expect, find_carrier
from keras_bert_flow.files.outputs import is_result
from keras_bert_flow.files.paths import find_address
from keras_bert_flow.records.tfrecord import RECORD_SUFFIX
from keras_bert_flow.results.artifacts import write_atomically
from keras_bert_flow.results.manifest import MANIFEST, FileSummary, is_published, read_manifest
from keras_bert_flow.stores.cache import Download, enter, fetched_root, is_here, leave, leave_all, make_room
from keras_bert_flow.stores.hub import fetch_from_hub, is_of_hub
from keras_bert_flow.stores.store import Store

KEY_LENGTH = 16
FOLDERS_ABOVE = 3  # parents searched for a manifest: `pretrained/seed-1/model` in a result of `kbf finetune`
CONTENT = "content"  # subfolder of a cache folder with the fetched files and nothing else
SOURCE = "source"  # file next to it with the address, for people who look into the cache
_downloads: list[Download] = []  # of this process


def fetch(path: str | Path, wait: bool = True) -> Path:
    """Download a remote folder and return its local path; a local path is returned unchanged.

    A folder with a manifest, or a subfolder of one, is compared with the manifest. It is cached under the digest of the
    manifest, so it is downloaded once, and a later process resumes what a killed one left. From a folder without a
    manifest of ours, all files that are not hidden are fetched.

    Args:
        path: a folder, or a file of one; for a file, the other files of its folder are fetched too, except records.
        wait: return when everything has arrived. If False, record files may still be downloading (`arrivals`).
    Raises:
        FileNotFoundError: nothing is there.
        OSError: the place cannot be reached, or its content does not fit in the cache.
        ValueError: a file differs from its manifest, or no package for such addresses is installed.
    """
    address = find_address(path)
    if address is None:
        return Path(path)
    if is_of_hub(address):
        return fetch_from_hub(address)
    found = find_published(address)
    if found is None:
        return _fetch_unlisted(Store(address), address)
    store, prefix, folder, files = found
    below = [file for file in files if PurePosixPath(file.name).is_relative_to(prefix)]
    is_file = any(file.name == str(prefix) for file in files)
    if is_file:
        below = [file for file in files if not _holds_records(file)]
    if not below:
        raise FileNotFoundError(f"A path must exist. Received: {address}, which {MANIFEST} does not list. Check it.")
    _bring(store, folder, below, wait)
    return folder / prefix


def stop_downloads() -> None:
    """Stop the downloads of this process, and release the cache folders; a later process resumes them."""
    while _downloads:
        _downloads.pop().stop()
    leave_all()


def find_published(address: str) -> tuple[Store, PurePosixPath, Path, tuple[FileSummary, ...]] | None:
    """Find the published folder that an address names or lies in, and fetch its manifest.

    Returns:
        Its store, the path of the address in it, its cache folder, which then has the manifest, and the files in the
        manifest; None if there is no manifest.
    Raises:
        OSError: the place cannot be reached.
        ValueError: the manifest is damaged.
    """
    scheme, _, place = address.partition("://")
    parts = [part for part in place.split("/") if part]
    for above in range(min(FOLDERS_ABOVE, len(parts) - 1) + 1):
        store = Store(f"{scheme}://{'/'.join(parts[: len(parts) - above])}")
        try:
            content = store.read(MANIFEST)
        except (FileNotFoundError, PermissionError):  # some stores raise the latter for missing files
            continue
        folder = _enter(store.address, content)
        path = folder / MANIFEST
        if not path.is_file() or path.read_bytes() != content:  # others may be reading the folder: `input_states`
            write_atomically(path, content)
        if is_result(folder):
            return store, PurePosixPath(*parts[len(parts) - above :]), folder, _read_files(store, folder)
        leave(folder.parent)
    return None


def _read_files(store: Store, folder: Path) -> tuple[FileSummary, ...]:
    try:
        return read_manifest(folder).files
    except ValueError:
        (folder / MANIFEST).unlink()
        raise ValueError(
            f"A manifest must be whole. Received: {store.address}/{MANIFEST}, damaged. Build the folder again."
        ) from None


def _fetch_unlisted(store: Store, address: str) -> Path:
    """Fetch a folder without a manifest, or a file of one."""
    listed = store.list()
    if "" in listed:  # a file
        parent, _, name = address.rpartition("/")
        store, listed, place = Store(parent), {name: listed[""]}, name
    else:
        listed, place = {name: facts for name, facts in listed.items() if _is_seen(name)}, ""
    folder = _enter(store.address, repr(sorted(listed.items())).encode())
    _bring(store, folder, [FileSummary(name, size, "") for name, (size, _) in sorted(listed.items())], wait=True)
    return folder / place


def _is_seen(name: str) -> bool:
    return not any(part.startswith(".") for part in PurePosixPath(name).parts)


def _enter(address: str, content: bytes) -> Path:
    """Create the cache folder for the content of an address."""
    key = hashlib.sha256(address.encode() + b"\0" + content).hexdigest()[:KEY_LENGTH]
    place = fetched_root() / key
    enter(place)
    write_atomically(place / SOURCE, f"{address}\n".encode())
    (place / CONTENT).mkdir(exist_ok=True)
    return place / CONTENT


def _bring(store: Store, folder: Path, files: Sequence[FileSummary], wait: bool) -> None:
    """Start downloading files that are not under way, and wait for all, or for all but records."""
    missing = [file for file in files if not is_here(folder / file.name, file)]
    make_room(fetched_root(), sum(file.file_bytes for file in missing), store.address)
    # The files that describe the records first, then the held-out records, of which there are few.
    files = sorted(files, key=lambda file: (_holds_records(file), not file.name.startswith("held_out")))
    download = Download(store, folder, [file for file in files if not _is_coming(folder / file.name)])
    _downloads.append(download)
    download.start()
    for path in (folder / file.name for file in files if wait or not file.name.endswith(RECORD_SUFFIX)):
        if (carrier := find_carrier(path)) is not None:
            carrier.wait(path)


def _is_coming(path: Path) -> bool:
    carrier = find_carrier(path)
    return carrier is not None and carrier.is_bringing(path)


def _holds_records(file: FileSummary) -> bool:
    return RECORD_SUFFIX in file.name


# Read only the manifests of published folders, not the data: for the digests of inputs and for finished results.


class Listed:
    """A file in a manifest that is not downloaded: only its digest is known; an `files.inputs.Carrier`."""

    def __init__(self, address: str, file: FileSummary):
        self._address, self._file = address, file

    def digest(self, path: Path) -> str:
        return self._file.sha256

    def is_bringing(self, path: Path) -> bool:
        return False

    def wait(self, path: Path) -> NoReturn:
        raise FileNotFoundError(
            f"A file must be fetched before it is read. Received: {self._address}/{self._file.name}. Fetch its folder."
        )

    def read(self, path: Path, start: int, end: int) -> bytes:
        self.wait(path)


def fetch_manifest(path: str | Path) -> Path:
    """Return a local stand-in with the digest of a published folder, or of a subfolder of one.

    A local path is returned unchanged. For a remote folder, only the manifest is fetched, and its files are known by
    their digests: `results.stages.keys` makes keys from them, but nothing can read them. A folder without a manifest
    of ours is fetched as a whole.

    Raises:
        FileNotFoundError, OSError, ValueError: as for `fetching.fetch`.
    """
    address = find_address(path)
    if address is None:
        return Path(path)
    found = None if is_of_hub(address) else find_published(address)
    if found is None:
        return fetch(address)
    store, prefix, folder, files = found
    for file in files:
        place = folder / file.name
        if PurePosixPath(file.name).is_relative_to(prefix) and not is_here(place, file) and not find_carrier(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            expect(place, Listed(store.address, file))
    return folder / prefix


def is_finished(path: str | Path, key: str) -> bool:
    """Return whether a folder holds the finished result of a key.

    Local files are compared with the digests in the manifest. Remote ones are compared by size; their digests are
    checked when they are fetched.

    Raises:
        OSError: the place cannot be reached.
    """
    address = find_address(path)
    if address is None:
        return is_published(path, key)
    try:
        sizes = {name: size for name, (size, _) in Store(address).list().items()}
        found = find_published(address) if MANIFEST in sizes else None
        if found is None:
            return False
        manifest = read_manifest(found[2])
    except (FileNotFoundError, ValueError):
        return False
    return manifest.key == key and all(sizes.get(file.name) == file.file_bytes for file in manifest.files)
