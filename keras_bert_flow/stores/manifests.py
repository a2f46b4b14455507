"""Read only the manifests of published folders, not the data: for the digests of inputs and for finished results."""

from pathlib import Path, PurePosixPath
from typing import NoReturn

from keras_bert_flow.arrivals import expect, find_carrier
from keras_bert_flow.local_paths import find_address
from keras_bert_flow.records.manifest import MANIFEST, FileSummary, is_published, read_manifest
from keras_bert_flow.stores.download import is_here
from keras_bert_flow.stores.fetching import fetch, find_published
from keras_bert_flow.stores.hub import is_of_hub
from keras_bert_flow.stores.store import Store


class Listed:
    """A file in a manifest that is not downloaded: only its digest is known; an `arrivals.Carrier`."""

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
    their digests: `stages.digests` makes keys from them, but nothing can read them. A folder without a manifest of ours
    is fetched as a whole.

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
