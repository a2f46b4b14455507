"""Google's object store, over its own protocol: the bytes of a disk."""

import subprocess
import sys

import pytest

from keras_bert_flow.stores.fetching import fetch, stop_downloads
from keras_bert_flow.stores.store import Store
from tests.oracles.tiny_records import write_tiny_records
from tests.patience import read_port

pytestmark = pytest.mark.any_backend

SERVER = """
import os, sys, threading
from gcp_storage_emulator.server import create_server
server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
server.start()
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(server._api._httpd.socket.getsockname()[1]))
os.rename(sys.argv[1] + ".new", sys.argv[1])
threading.Event().wait()
"""


@pytest.fixture
def storage(tmp_path, monkeypatch):
    """Start an emulator of the store with an empty bucket, and let this process reach it."""
    pytest.importorskip("gcsfs", reason="Google's object store is read with gcsfs")
    pytest.importorskip("gcp_storage_emulator", reason="the server is its emulator")
    port = tmp_path / "port"
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stderr=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{read_port(port, server)}")
        monkeypatch.setenv("KBF_CACHE", str(tmp_path / "cache"))
        yield "gs://bucket"
        stop_downloads()
    finally:
        server.kill()
        server.wait()


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
