"""The cache stays within its limit, keeps what is used, and goes on with what a killed process left."""

import os
import signal
import subprocess
import sys
import time

import pytest

from keras_bert_flow.stores.fetching import (
    DEFAULT_LIMIT_GB,
    FETCHED,
    GB,
    cache_limit,
    cache_root,
    enter,
    fetch,
    leave,
    make_room,
)
from tests.oracles.tiny_records import write_tiny_records
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.any_backend


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("KBF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("KBF_CACHE_GB", str(1000 / GB))
    return cache_root() / FETCHED


def fill(root, name, size, age=0.0):
    enter(root / name)
    (root / name / "file").write_bytes(bytes(size))
    leave(root / name)
    os.utime(root / name / ".in-use", (time.time() - age,) * 2)


def left_in(root):
    return sorted(path.name for path in root.iterdir())


def test_what_was_used_longest_ago_goes_first(root, monkeypatch):
    for name, age in (("new", 1), ("old", 30), ("older", 50)):
        fill(root, name, 300, age)
    make_room(root, 100, "x")
    assert left_in(root) == ["new", "old", "older"]
    monkeypatch.setenv("KBF_CACHE_GB", str(1 / GB))
    make_room(root, 0, "x")  # what is here is used, whatever the limit is by now
    assert left_in(root) == ["new", "old", "older"]
    monkeypatch.setenv("KBF_CACHE_GB", str(1000 / GB))
    make_room(root, 200, "x")
    assert left_in(root) == ["new", "old"]
    make_room(root, 1000, "x")
    assert left_in(root) == []


def test_what_a_process_uses_stays(root):
    for name, age in (("used here", 90), ("used there", 80), ("old", 30)):
        fill(root, name, 300, age)
    enter(root / "used here")
    hold = "import fcntl; file = open('.in-use'); fcntl.flock(file, fcntl.LOCK_SH); print('held', flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    other = subprocess.Popen([sys.executable, "-c", hold], cwd=root / "used there", **pipes)
    assert other.stdout.readline() == b"held\n"
    try:
        with pytest.raises(
            OSError, match=r"must fit in the cache of 1e-06 GB .*Received: s3://b/x.*Raise KBF_CACHE_GB"
        ):
            make_room(root, 500, "s3://b/x")
        assert left_in(root) == ["used here", "used there"]
    finally:
        other.kill()
        other.communicate()
    make_room(root, 500, "s3://b/x")
    assert left_in(root) == ["used here"]
    leave(root / "used here")


def test_folder_that_is_removed_while_it_is_entered_is_made_again(root):
    fill(root, "a", 900)
    make_room(root, 900, "x")
    enter(root / "a")
    assert left_in(root / "a") == [".in-use"]
    leave(root / "a")


@pytest.mark.parametrize("given", ["0", "-1", "many", "nan", "inf"])
def test_limit_is_a_positive_number(given, monkeypatch):
    monkeypatch.setenv("KBF_CACHE_GB", given)
    with pytest.raises(ValueError, match=r"KBF_CACHE_GB must be a positive number"):
        cache_limit()
    monkeypatch.delenv("KBF_CACHE_GB")
    assert cache_limit() == DEFAULT_LIMIT_GB * GB


def test_what_cannot_fit_is_refused_before_it_is_fetched(put, tmp_path, trouble, monkeypatch):
    address = put(write_tiny_records(tmp_path / "records", train=(130, 100)), "r")
    monkeypatch.setenv("KBF_CACHE_GB", "0.00001")
    with pytest.raises(OSError, match=r"must fit in the cache of 1e-05 GB"):
        fetch(address)
    assert {path.rpartition("/")[2] for path, _ in trouble.reads()} == {"manifest.json"}


def test_killed_download_is_gone_on_with(put, tmp_path, trouble, monkeypatch):
    monkeypatch.setattr("keras_bert_flow.stores.fetching.CHUNK_BYTES", 10_000)
    folder = write_tiny_records(tmp_path / "records", train=(400,))
    address, name = put(folder, "r"), "train-00000-of-00001.tfrecord"
    script = (
        "import sys\n"
        "from keras_bert_flow.stores import fetching\n"
        "fetching.CHUNK_BYTES = 10_000\n"
        "fetching.fetch(sys.argv[1])\n"
    )
    child = subprocess.Popen([sys.executable, "-c", script, address])

    def kill_at_third(number, method, path):
        if path.endswith(name) and (trouble.seen[number - 1][2] or "").startswith("bytes=20000-"):
            child.send_signal(signal.SIGKILL)

    trouble.decide = kill_at_third
    assert child.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    (part,) = (cache_root() / FETCHED).rglob(f".{name}.part")
    begun = part.stat().st_size
    assert begun == 20_000
    trouble.decide = lambda number, method, path: None
    trouble.seen.clear()
    fetched = fetch(address)
    assert (fetched / name).read_bytes() == (folder / name).read_bytes()
    assert [span for path, span in trouble.reads() if path.endswith(name)][0] == f"bytes={begun}-{begun + 9999}"


@pytest.mark.slow
def test_part_that_was_spoilt_is_fetched_again(put, tmp_path, trouble):
    folder = write_tiny_records(tmp_path / "records", train=(40,))
    address, name = put(folder, "r"), "train-00000-of-00001.tfrecord"
    fetched = fetch(f"{address}/vocab.txt").parent
    (fetched / f".{name}.part").write_bytes(b"not what was there")
    assert fetch(address) == fetched
    assert (fetched / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.slow
def test_two_processes_fetch_a_file_once(put, tmp_path, trouble):
    folder = write_tiny_records(tmp_path / "records", train=(100, 90, 80))
    address = put(folder, "r")
    script = "import sys; from keras_bert_flow.stores.fetching import fetch; print(fetch(sys.argv[1]))"
    both = [subprocess.Popen([sys.executable, "-c", script, address], stdout=subprocess.PIPE) for _ in range(2)]
    places = {child.communicate(timeout=PATIENCE_SECONDS)[0] for child in both}
    assert len(places) == 1 and not any(child.returncode for child in both)
    asked = [path for path, _ in trouble.reads() if path.endswith(".tfrecord")]
    assert len(asked) == len(set(asked)) == 4
