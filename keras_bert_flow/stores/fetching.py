"""Give what lies at another place a path on this disk: fetched once, compared with its manifest, kept in the cache."""

import hashlib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from keras_bert_flow.arrivals import find_carrier
from keras_bert_flow.artifacts import write_atomically
from keras_bert_flow.local_paths import find_address
from keras_bert_flow.records.manifest import MANIFEST, FileSummary, read_manifest
from keras_bert_flow.records.tfrecord import RECORD_SUFFIX
from keras_bert_flow.records.verification import is_ours
from keras_bert_flow.stores.cache import enter, fetched_root, leave, leave_all, make_room
from keras_bert_flow.stores.download import Download, is_here
from keras_bert_flow.stores.hub import fetch_from_hub, is_of_hub
from keras_bert_flow.stores.store import Store

KEY_LENGTH = 16
FOLDERS_ABOVE = 3  # in which a manifest is looked for: `pretrained/seed-1/model` of what `kbf finetune` published
CONTENT = "content"  # folder of a folder of the cache, with what was fetched and nothing else
SOURCE = "source"  # file beside it with the address, for who looks into the cache
_downloads: list[Download] = []  # of this process


def fetch(path: str | Path, wait: bool = True) -> Path:
    """Return the path on this disk of a folder that may be elsewhere; one on this disk is returned as it is.

    A folder with a manifest, or one within such a folder, is compared with it. It comes into the cache under the digest
    of that manifest, so it is fetched once, and what a killed process left is gone on with. Of a folder that others
    made, all files are fetched that are not hidden.

    Args:
        path: a folder, or a file of one: then the files beside it come too, records aside.
        wait: return when all is here. If False, files of records may still be on their way (`arrivals`).
    Raises:
        FileNotFoundError: nothing is there.
        OSError: the place cannot be reached, or what is there does not fit in the cache.
        ValueError: a file is not as its manifest says, or no package for such addresses is installed.
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
    """End the downloads of this process, and give the folders back; a later one goes on with them."""
    while _downloads:
        _downloads.pop().stop()
    leave_all()


def find_published(address: str) -> tuple[Store, PurePosixPath, Path, tuple[FileSummary, ...]] | None:
    """Return the published folder that an address is or lies in, the place in it, the folder of the cache for it, in
    which its manifest then is, and the files of that; None where there is no manifest.

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
        except (FileNotFoundError, PermissionError):  # a store may say so of what is not there, or of folders above
            continue
        folder = _enter(store.address, content)
        write_atomically(folder / MANIFEST, content)
        if is_ours(folder / MANIFEST):
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
    """Fetch a folder that has no manifest, or a file of one."""
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
    """Make the folder of the cache for what an address holds."""
    key = hashlib.sha256(address.encode() + b"\0" + content).hexdigest()[:KEY_LENGTH]
    place = fetched_root() / key
    enter(place)
    write_atomically(place / SOURCE, f"{address}\n".encode())
    (place / CONTENT).mkdir(exist_ok=True)
    return place / CONTENT


def _bring(store: Store, folder: Path, files: Sequence[FileSummary], wait: bool) -> None:
    """Have files come, except those that are coming already, and wait for those that are not records, or for all."""
    missing = [file for file in files if not is_here(folder / file.name, file)]
    make_room(fetched_root(), sum(file.file_bytes for file in missing), store.address)
    # What tells of the records first, then those that are evaluated on, of which there are few.
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
