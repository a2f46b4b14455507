"""Fetch remote folders to local paths: downloaded once, compared with their manifests, kept in the cache."""

import hashlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from keras_bert_flow.arrivals import find_carrier
from keras_bert_flow.artifacts import write_atomically
from keras_bert_flow.local_paths import find_address
from keras_bert_flow.outputs import is_result
from keras_bert_flow.records.manifest import MANIFEST, FileSummary, read_manifest
from keras_bert_flow.records.tfrecord import RECORD_SUFFIX
from keras_bert_flow.stores.cache import enter, fetched_root, leave, leave_all, make_room
from keras_bert_flow.stores.download import Download, is_here
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
