"""HDFS: files whole or not there, folders that do not outlive their files, records and models as from a disk."""

import threading
import uuid
from pathlib import Path

import pytest
import yaml

from keras_bert_flow.results.manifest import MANIFEST
from keras_bert_flow.stores import hdfs
from keras_bert_flow.stores.fetching import cache_root, fetch, stop_downloads
from keras_bert_flow.stores.publishing import Mirror, check_writable, made_at
from keras_bert_flow.stores.store import Store
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.commands import assert_refused, kbf
from tests.flows.conftest import tiny_config  # noqa: F401  a fixture
from tests.oracles.killed_pretraining import Killed
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.troubled_store import BUSY, CUT, troubled
from tests.webhdfs import webhdfs

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def service():
    with webhdfs() as (address, files):
        yield address, files


@pytest.fixture
def address(service, tmp_path, monkeypatch):
    monkeypatch.setenv("KBF_CACHE", str(tmp_path / "cache"))
    yield f"{service[0]}/{uuid.uuid4().hex}"
    stop_downloads()


@pytest.fixture
def trouble(address):
    """Stand a proxy before the small service; return it, and the address through it."""
    host = address.split("/")[2]
    with troubled(f"http://{host}") as proxy:
        yield proxy, address.replace(host, proxy.address.removeprefix("http://"))


def listed(store):
    """Return the names of the files and the folders below a store's address."""
    found = store._files.find(store._root, withdirs=True)
    return sorted(path.removeprefix(f"{store._root}/") for path in found if path != store._root)


def test_a_file_is_replaced_read_renamed_and_removed(address, tmp_path):
    store, file = Store(address), tmp_path / "file"
    content = bytes(range(256)) * 50_000
    for version in (b"", content):
        file.write_bytes(version)
        store.upload(file, "a/ä = 1 & 2")
        assert store.read("a/ä = 1 & 2") == version
        store.download("a/ä = 1 & 2", tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == version
    assert store.read("a/ä = 1 & 2", 1000, 1010) == content[1000:1010]
    with store.open("a/ä = 1 & 2") as opened:
        opened.seek(12_000_000)
        assert opened.read(3) + opened.readline() == content[12_000_000:].partition(b"\n")[0] + b"\n"
    store.write("b", b"old")
    store.rename("a/ä = 1 & 2", "b")
    assert store.read("b") == content and [*store.list()] == ["b"]
    store.remove("b")
    store.remove("b")
    assert not store.exists("b")
    with pytest.raises(FileNotFoundError, match="where there is nothing"):
        store.list()


def test_folders_go_with_their_last_file(address):
    store = Store(address)
    for name in ("a/b/c/1", "a/2", "d/3", "d/e/4"):
        store.write(name, b"-")
    store.remove("a/b/c/1")
    store.remove("d", is_folder=True)
    assert listed(store) == ["a", "a/2"]
    store.remove("a/2")
    assert listed(store) == []


def test_a_file_that_is_being_written_is_not_there(service, address, tmp_path):
    """HDFS shows it under its name as it grows: ours grows under a hidden one."""
    store, seen, ended = Store(address), set(), threading.Event()
    store.write("a", b"-")

    def watch():
        while not ended.is_set():
            seen.update((name, size) for name, (size, _) in Store(address).list().items() if "/." not in f"/{name}")

    thread = threading.Thread(target=watch)
    thread.start()
    (tmp_path / "file").write_bytes(b"x" * 3_000_000)
    store.upload(tmp_path / "file", "file")
    ended.set()
    thread.join()
    assert seen <= {("a", 1), ("file", 3_000_000)}


def test_an_address_names_host_and_port():
    for address in ("hdfs://namenode/a", "hdfs://:9870/a", "hdfs://namenode:http/a"):
        with pytest.raises(ValueError, match=f"host and the port of WebHDFS. Received: {address}"):
            Store(address)


def test_the_user_is_that_of_the_environment(address, monkeypatch):
    monkeypatch.setenv("HADOOP_USER_NAME", "somebody")
    assert hdfs.connect(address)[0].user == "somebody"
    monkeypatch.delenv("HADOOP_USER_NAME")
    monkeypatch.setattr(hdfs.getpass, "getuser", lambda: "me")
    assert hdfs.connect(address)[0].user == "me"


def test_a_place_without_rights_is_refused(service, address, monkeypatch):
    if service[1] is None:
        pytest.skip("the real service has users of its own")
    monkeypatch.setattr(service[1], "forbidden", ("/user/test",))
    with pytest.raises(PermissionError, match=f"must be reachable. Received: {address}/.*Permission denied"):
        check_writable(address)
    monkeypatch.setattr(service[1], "forbidden", ())
    check_writable(address)
    Store(address).write("seen/a", b"-")
    Store(address).write("hidden/a", b"-")
    monkeypatch.setattr(service[1], "forbidden", (f"{Store(address)._root}/hidden",))
    with pytest.raises(PermissionError, match="Permission denied"):  # and not a list without it
        Store(address).list()


def test_a_gateway_that_cannot_replace_a_file_is_no_success(service, address, monkeypatch):
    if service[1] is None:
        pytest.skip("the real service replaces files")
    rename = service[1].rename
    monkeypatch.setattr(service[1], "rename", lambda path, target, replace: rename(path, target, replace=False))
    Store(address).write("a", b"old")
    with pytest.raises(OSError, match="could not be renamed"):
        Store(address).write("a", b"new")
    assert Store(address).read("a") == b"old"


@pytest.mark.slow
@pytest.mark.parametrize("verdict", [BUSY, CUT])
def test_a_service_that_fails_at_times_is_asked_again(verdict, service, trouble, tmp_path):
    if service[1] is None:
        pytest.skip("the real service sends its clients past the proxy")
    proxy, address = trouble
    proxy.decide = lambda number, method, path: verdict if number % 4 == 1 else None
    records, store = write_tiny_records(tmp_path / "records"), Store(f"{address}/r")
    for path in records.iterdir():
        store.upload(path, path.name)
    fetched = fetch(f"{address}/r")
    assert read_all(fetched) == read_all(records)


def read_all(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.slow
def test_weights_from_hdfs_and_after_a_move_to_another_machine_are_those_of_a_disk(address, tmp_path, monkeypatch):
    records, store = write_tiny_records(tmp_path / "records"), Store(f"{address}/records")
    for path in records.iterdir():
        store.upload(path, path.name)
    here = pretrain(make_tiny_config(), records, tmp_path / "disk", lambda line: None)
    mirrors = []
    monkeypatch.setattr(Mirror, "_follow", lambda self: mirrors.append(self))

    def die(line):
        for mirror in mirrors:
            mirror.sync()
        if line["step"] > 4:
            raise Killed

    with pytest.raises(Killed), made_at(f"{address}/run") as place:
        pretrain(make_tiny_config(), fetch(f"{address}/records"), place, die)
    assert ".work/owner" in Store(f"{address}/run").list()
    stop_downloads()
    cache_root().rename(tmp_path / "the other machine")
    steps = []
    with made_at(f"{address}/run") as place:
        pretrain(make_tiny_config(), fetch(f"{address}/records"), place, lambda line: steps.append(line["step"]))
    assert min(steps) > 4
    there = Store(f"{address}/run")
    assert there.read("model/model.safetensors") == (here / "model/model.safetensors").read_bytes()
    assert not [name for name in listed(there) if name.startswith(".")] and MANIFEST in listed(there)


@pytest.mark.slow
def test_a_whole_run_is_found_by_another_machine(address, tiny_config, tmp_path, monkeypatch):  # noqa: F811
    values, inputs = yaml.safe_load(tiny_config.read_text()), Store(f"{address}/inputs")
    for name in ("corpus.txt", "train.tsv", "dev.tsv"):
        inputs.upload(tiny_config.parent / name, name)
    values["runs"], values["corpus"]["input"] = f"{address}/runs", [f"{inputs.address}/corpus.txt"]
    values["task"] |= {"train": f"{inputs.address}/train.tsv", "dev": f"{inputs.address}/dev.tsv"}
    tiny_config.write_text(yaml.safe_dump(values))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    status, printed, error = kbf("run", tiny_config, "--backend", "torch")
    assert status == 0, printed + error
    made = listed(Store(address))
    monkeypatch.setenv("KBF_CACHE", str(tmp_path / "another machine"))
    status, printed, error = kbf("run", tiny_config, "--backend", "torch")
    assert status == 0 and printed.count("is there") == 5, printed + error
    assert listed(Store(address)) == made and not [name for name in made if ".work" in name]
    assert_refused(kbf("run", tiny_config, "--set", "runs=hdfs://127.0.0.1:1/runs"), "hdfs://127.0.0.1:1/runs")
