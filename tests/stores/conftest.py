"""A bucket on this machine, a proxy before it, and a cache of each test's own."""

import pytest

from keras_bert_flow.stores.fetching import stop_downloads
from tests.object_store import BUCKET, client, list_bucket, object_store
from tests.troubled_store import troubled


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pytest.importorskip("s3fs", reason="object stores are read with s3fs")
    pytest.importorskip("moto", reason="the server is moto's")
    with (
        object_store(tmp_path_factory.mktemp("store")) as environment,
        troubled(environment["AWS_ENDPOINT_URL"]) as proxy,
    ):
        yield environment, proxy


@pytest.fixture
def trouble(server, tmp_path, monkeypatch):
    """Empty the bucket, let this process and its children reach it through the proxy, and return the proxy."""
    environment, proxy = server
    for name, value in (
        environment | {"AWS_ENDPOINT_URL": proxy.address, "KBF_CACHE": str(tmp_path / "cache")}
    ).items():
        monkeypatch.setenv(name, value)
    for key in list_bucket(environment):
        client(environment).delete_object(Bucket=BUCKET, Key=key)
    proxy.decide = lambda number, method, path: None
    proxy.seen.clear()
    yield proxy
    proxy.decide = lambda number, method, path: None
    stop_downloads()


@pytest.fixture
def put(server, trouble):
    """Return a function that copies a folder into the bucket and returns its address there."""

    def copy(folder, name):
        store = client(server[0])
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                store.put_object(Bucket=BUCKET, Key=f"{name}/{path.relative_to(folder)}", Body=path.read_bytes())
        return f"s3://{BUCKET}/{name}"

    return copy


@pytest.fixture
def spoil(server):
    """Return a function that changes a byte of an object in the bucket."""

    def change(key):
        store = client(server[0])
        content = bytearray(store.get_object(Bucket=BUCKET, Key=key)["Body"].read())
        content[len(content) // 2] ^= 1
        store.put_object(Bucket=BUCKET, Key=key, Body=bytes(content))

    return change
