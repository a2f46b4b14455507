"""Google's object store, over its own protocol: the bytes of a disk."""

import pytest

from keras_bert_flow.stores.fetching import fetch, stop_downloads
from keras_bert_flow.stores.store import Store
from tests.google_store import google_store
from tests.oracles.tiny_records import write_tiny_records

pytestmark = pytest.mark.any_backend


@pytest.fixture
def storage(tmp_path, monkeypatch):
    """Start an emulator of the store with an empty bucket, and let this process reach it."""
    pytest.importorskip("gcsfs", reason="Google's object store is read with gcsfs")
    pytest.importorskip("gcp_storage_emulator", reason="the server is its emulator")
    with google_store(tmp_path) as (address, environment):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", environment["STORAGE_EMULATOR_HOST"])
        monkeypatch.setenv("KBF_CACHE", str(tmp_path / "cache"))
        yield address
        stop_downloads()


def test_folder_is_fetched_as_it_was_uploaded(storage, tmp_path):
    folder, store = write_tiny_records(tmp_path / "records"), Store(f"{storage}/made/r")
    for path in folder.iterdir():
        store.upload(path, path.name)
    fetched = fetch(f"{storage}/made/r")
    assert {path.name: path.read_bytes() for path in fetched.iterdir()} == {
        path.name: path.read_bytes() for path in folder.iterdir()
    }
    assert fetch(f"{storage}/made/r/vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()
    store.remove("manifest.json")
    unlisted = fetch(f"{storage}/made/r")
    assert unlisted != fetched and sorted(path.name for path in unlisted.iterdir()) == sorted(store.list())
