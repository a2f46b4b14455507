"""What lies in an object store is read as from a disk: the same bytes, whole or refused, fetched once."""

import threading
from pathlib import Path

import numpy as np
import pytest

from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.files.inputs import find_carrier, hold
from keras_bert_flow.records.tfrecord import check_records
from keras_bert_flow.results.publishing import verify
from keras_bert_flow.stores.fetching import FETCHED, cache_root, fetch, stop_downloads
from tests.object_store import BUCKET, client
from tests.oracles.tiny_model import write_tiny_model
from tests.oracles.tiny_records import write_tiny_records
from tests.patience import PATIENCE_SECONDS
from tests.troubled_store import BUSY, CUT, FORBIDDEN

pytestmark = pytest.mark.any_backend


@pytest.fixture
def records(tmp_path, put):
    """Return a folder of records and the address of its copy."""
    folder = write_tiny_records(tmp_path / "records", train=(130, 100))
    return folder, put(folder, "made/r")


def read_batches(records, count=12):
    batches = iter(pretraining_dataset(records, 8, masking="dynamic"))
    return [next(batches) for _ in range(count)]


def assert_equal(left, right):
    for one, other in zip(left, right, strict=True):
        for part, twin in zip(one, other, strict=True):
            assert part.keys() == twin.keys()
            assert all(np.array_equal(part[name], twin[name]) for name in part)


def files_of(folder):
    """Return the content of each file that is not the cache's own."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def test_folder_is_fetched_as_it_is_and_once(records, trouble):
    folder, address = records
    fetched = fetch(address)
    assert files_of(fetched) == files_of(folder)
    check_records(fetched)
    trouble.seen.clear()
    stop_downloads()
    inputs = hold(fetched)
    assert fetch(address) == fetch(Path(address)) == fetched
    assert {path for path, _ in trouble.reads()} == {f"/{BUCKET}/made/r/manifest.json"}
    assert fetch(folder) == folder
    inputs.check()  # a run that reads it goes on


@pytest.mark.slow
def test_batches_are_those_of_a_disk(records):
    folder, address = records
    assert_equal(read_batches(folder), read_batches(address))
    whole, elsewhere = PretrainingRecords(folder), PretrainingRecords(address)
    assert np.array_equal(whole.label_weights, elsewhere.label_weights)
    assert elsewhere.is_here


def test_training_begins_before_the_records_are_here(records, trouble):
    folder, address = records
    shard, come = "train-00001-of-00002.tfrecord", threading.Event()
    whole = f"bytes=0-{(folder / shard).stat().st_size - 1}"

    def hold(number, method, path):
        if path.endswith(shard) and trouble.seen[number - 1][2] == whole:
            come.wait(PATIENCE_SECONDS)

    trouble.decide = hold
    opened = PretrainingRecords(address)
    assert_equal(read_batches(folder), read_batches(opened))
    path = fetch(address, wait=False) / shard
    assert not path.exists() and not opened.is_here
    come.set()
    opened.wait()
    assert path.exists() and opened.is_here and find_carrier(path) is None
    trouble.decide = lambda number, method, path: BUSY  # nothing is asked any more
    assert_equal(read_batches(folder), read_batches(opened))


@pytest.mark.parametrize("verdict", [BUSY, CUT])
def test_store_that_fails_at_times_is_asked_again(verdict, records, trouble, caplog):
    folder, address = records
    trouble.decide = lambda number, method, path: verdict if number % 3 == 1 else None
    assert files_of(fetch(address)) == files_of(folder)


def test_store_that_always_fails_is_named_in_one_line(records, trouble, monkeypatch):
    monkeypatch.setattr("keras_bert_flow.stores.store.FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    trouble.decide = lambda number, method, path: BUSY
    with pytest.raises(OSError, match=rf"remote address must be reachable\. Received: s3://{BUCKET}/made/r") as caught:
        fetch(records[1])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["vocab.txt", "train-00001-of-00002.tfrecord", "train-00000-of-00002.tfrecord.index"])
def test_changed_file_is_refused_and_not_kept(name, records, spoil):
    spoil(f"made/r/{name}")
    with pytest.raises(
        ValueError, match=rf"as its manifest says\. Received: s3://.*/made/r/{name}, changed or damaged"
    ):
        fetch(records[1])
    assert not [path for path in (cache_root() / FETCHED).rglob("*") if path.name in (name, f".{name}.part")]


def test_stopped_download_is_begun_again(records, trouble):
    folder, address = records
    shard, held = "train-00001-of-00002.tfrecord", threading.Event()

    def hold(number, method, path):
        if path.endswith(shard):
            held.wait(PATIENCE_SECONDS)

    trouble.decide = hold
    path = fetch(address, wait=False) / shard
    threading.Timer(0.5, held.set).start()
    stop_downloads()  # while the shard is on its way
    assert find_carrier(path) is None
    assert files_of(fetch(address)) == files_of(folder)


def test_failed_download_is_begun_again(records, spoil):
    folder, address = records
    spoil("made/r/vocab.txt")
    with pytest.raises(ValueError, match="changed or damaged"):
        fetch(address)
    spoil("made/r/vocab.txt")  # the same bit: it is whole again
    assert files_of(fetch(address)) == files_of(folder)


def test_changed_shard_stops_who_reads_its_records(records, spoil):
    spoil("made/r/train-00001-of-00002.tfrecord")
    opened = PretrainingRecords(records[1])
    with pytest.raises(ValueError, match=r"made/r/train-00001-of-00002\.tfrecord, changed or damaged"):
        opened.wait()
    with pytest.raises(ValueError, match=r"train-00001-of-00002\.tfrecord, changed or damaged"):
        opened[229]


def test_damaged_manifest_is_refused(records, spoil):
    spoil("made/r/manifest.json")
    with pytest.raises(ValueError, match=rf"Received: s3://{BUCKET}/made/r/manifest\.json, damaged"):
        fetch(records[1])


def test_new_content_at_an_address_is_fetched(records, put, tmp_path):
    first = fetch(records[1])
    put(write_tiny_records(tmp_path / "others", train=(130, 100), seed=1), "made/r")
    second = fetch(records[1])
    assert first != second and files_of(second) == files_of(tmp_path / "others")


def test_missing_folder_is_named(trouble):
    with pytest.raises(FileNotFoundError, match=rf"Received: s3://{BUCKET}/no/where, where there is nothing"):
        fetch(f"s3://{BUCKET}/no/where")


def test_file_comes_with_those_beside_it_but_not_with_records(records):
    fetched = fetch(f"{records[1]}/vocab.txt")
    assert fetched.read_bytes() == (records[0] / "vocab.txt").read_bytes()
    verify(fetched)
    assert not list(fetched.parent.glob("*.tfrecord*"))


@pytest.mark.slow
def test_folder_that_others_made_is_fetched(put, tmp_path, trouble):
    model = write_tiny_model(tmp_path / "theirs")
    (model / ".git").mkdir()
    (model / ".git" / "config").write_text("not a weight")
    fetched = fetch(put(model, "hf/model"))
    assert files_of(fetched) == {name: content for name, content in files_of(model).items() if ".git" not in name}
    assert not (fetched / ".git").exists()
    assert fetch(f"s3://{BUCKET}/hf/model/vocab.txt").read_bytes() == (model / "vocab.txt").read_bytes()
    trouble.seen.clear()
    stop_downloads()
    assert fetch(f"s3://{BUCKET}/hf/model") == fetched and not [
        path for path, _ in trouble.reads() if "model.s" in path
    ]


def test_names_that_lead_out_of_the_folder_are_left_out(server, put, tmp_path):
    address, store = put(write_tiny_model(tmp_path / "theirs"), "hf/evil"), client(server[0])
    for name in (f"{tmp_path}/absolute", "../up", "a/../../../up"):
        store.put_object(Bucket=BUCKET, Key=f"hf/evil/{name}", Body=b"not a weight")
    fetched = fetch(address)
    assert files_of(fetched) == files_of(tmp_path / "theirs")
    assert not (tmp_path / "absolute").exists() and not list(fetched.parents[2].rglob("up"))


@pytest.mark.slow
def test_folders_that_may_not_be_looked_into_are_passed_over(put, tmp_path, trouble):
    model = write_tiny_model(tmp_path / "theirs")
    address = put(model, "hf/model")
    trouble.decide = lambda number, method, path: FORBIDDEN if path.endswith("manifest.json") else None
    assert files_of(fetch(address)) == files_of(model)
