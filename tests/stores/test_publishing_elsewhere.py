"""Results in an object store: whole or not there, gone on with by whoever comes next, never mixed."""

import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from keras_bert_flow.results.manifest import MANIFEST, read_manifest
from keras_bert_flow.stores import publishing
from keras_bert_flow.stores.fetching import OUTPUTS, cache_root, fetch, stop_downloads
from keras_bert_flow.stores.publishing import made_at
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.commands import assert_refused, kbf
from tests.object_store import BUCKET, client, list_bucket, read_bucket
from tests.oracles.killed_pretraining import Killed
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.patience import PATIENCE_SECONDS
from tests.troubled_store import BUSY, CUT

pytestmark = pytest.mark.any_backend

OUTPUT = f"s3://{BUCKET}/runs/a"


@pytest.fixture
def records(tmp_path):
    return write_tiny_records(tmp_path / "records")


def objects(server, prefix="runs/a/"):
    return {key.removeprefix(prefix): content for key, content in read_bucket(server[0]).items() if prefix in key}


def train(records, report=lambda line: None, config=None):
    with made_at(OUTPUT) as place:
        pretrain(config or make_tiny_config(), records, place, report)


def die(line):
    mirror_all()
    if line["step"] > 4:
        raise Killed


def list_steps(files):
    return [json.loads(line)["step"] for line in files["log.jsonl"].splitlines()]


def mirror_all():
    """Let the copies be made now, not in some seconds."""
    for one in mirrors:
        one.sync()


mirrors = []


@pytest.fixture(autouse=True)
def known_mirrors(monkeypatch):
    """Know the mirrors, and have them make no copy by themselves."""
    mirrors.clear()
    monkeypatch.setattr(publishing.Mirror, "_follow", lambda self: mirrors.append(self))


def forget_this_machine():
    stop_downloads()
    shutil.rmtree(cache_root())


def published(records, tmp_path, config=None):
    """Return the files of the same result on a disk, but for what tells of time."""
    folder = pretrain(config or make_tiny_config(), records, tmp_path / "disk", lambda line: None)
    return {file.name: (folder / file.name).read_bytes() for file in read_manifest(folder).files} | {
        MANIFEST: (folder / MANIFEST).read_bytes()
    }


def test_result_is_that_of_a_disk_and_is_made_once(records, tmp_path, server, trouble):
    train(records)
    there, here = objects(server), published(records, tmp_path)
    assert there.keys() == here.keys()
    assert there["model/model.safetensors"] == here["model/model.safetensors"]
    assert not (cache_root() / OUTPUTS).exists() or not any((cache_root() / OUTPUTS).iterdir())
    seen = []
    train(records, seen.append)
    assert not seen and objects(server) == there
    with pytest.raises(FileExistsError, match=rf"Received: {OUTPUT}, which exists"):
        train(records, config=make_tiny_config(total_steps=13))
    assert objects(server) == there


# Killed at 4, 8 and 12, on from none, 4 and 8
MANY = ((3, 6, 9), [3, 4, 3, 4, 6, 8, 6, 8, 9, 12, 9, 12])
ONE = ((6,), [3, 4, 6, 8, 6, 8, 9, 12])


@pytest.mark.parametrize(
    ("is_moved", "kills"),
    [(True, ONE), *(pytest.param(moved, MANY, marks=pytest.mark.slow) for moved in (True, False))],
)
@pytest.mark.slow
def test_killed_run_goes_on_here_or_elsewhere(is_moved, kills, records, tmp_path, server, trouble):
    trouble.decide = lambda number, method, path: BUSY if number % 5 == 1 else None
    steps = []
    for last in kills[0]:

        def stop(line, last=last):
            steps.append(line["step"])
            if line["step"] > last:
                raise Killed

        with pytest.raises(Killed):
            train(records, stop)
        assert "manifest.json" not in objects(server)
        if is_moved:
            forget_this_machine()
    train(records, lambda line: steps.append(line["step"]))
    there, here = objects(server), published(records, tmp_path)
    assert there.keys() == here.keys()
    assert there["model/model.safetensors"] == here["model/model.safetensors"]
    assert list_steps(there) == list_steps(here) == [3, 4, 6, 8, 9, 12]
    assert steps == kills[1]


@pytest.mark.slow
def test_result_that_could_not_be_uploaded_stays_until_it_is(records, server, trouble, monkeypatch):
    monkeypatch.setattr("keras_bert_flow.stores.store.FIRST_WAIT_SECONDS", 0.01)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    trouble.decide = lambda number, method, path: BUSY if method == "PUT" and path.endswith("README.md") else None
    with pytest.raises(OSError, match=r"must be reachable\. Received: s3://.*README\.md"):
        train(records)
    with pytest.raises(FileExistsError):  # of other settings, before it is there
        train(records, config=make_tiny_config(total_steps=13))
    trouble.decide = lambda number, method, path: None
    seen = []
    train(records, seen.append)
    assert not seen and "manifest.json" in objects(server)


@pytest.mark.slow
def test_copies_are_of_what_is_there(records, server, trouble):
    with pytest.raises(Killed):
        train(records, die)
    (owner,) = {name.split("/")[1] for name in objects(server) if name.startswith(".work/")} - {"owner"}
    copies = [name for name in objects(server) if name.startswith(f".work/{owner}/checkpoints/")]
    assert objects(server)[".work/owner"].decode() == owner
    assert {name.split("/")[3] for name in copies} == {"best", "step-00000004"}


@pytest.mark.slow
def test_earlier_process_that_is_still_alive_publishes_nothing(records, server, trouble, monkeypatch, tmp_path):
    with (
        pytest.raises(OSError, match=rf"one process at a time\. Received: {OUTPUT}, which another"),
        made_at(OUTPUT) as place,
    ):
        monkeypatch.setenv("KBF_CACHE", str(tmp_path / "another machine"))
        train(records)
        there = objects(server)
        pretrain(make_tiny_config(learning_rate=0.02), records, place, lambda line: None)
    assert {name: content for name, content in objects(server).items() if ".work" not in name} == there


@pytest.mark.slow
def test_other_files_are_never_touched(records, server, trouble):
    client(server[0]).put_object(Bucket=BUCKET, Key="runs/a/notes.txt", Body=b"mine")
    client(server[0]).put_object(Bucket=BUCKET, Key="runs/ab", Body=b"mine")
    with pytest.raises(FileExistsError, match=rf"must be new\. Received: {OUTPUT}, which holds notes\.txt"):
        train(records)
    client(server[0]).delete_object(Bucket=BUCKET, Key="runs/a/notes.txt")
    train(records)
    assert read_bucket(server[0])["runs/ab"] == b"mine"


@pytest.mark.slow
def test_what_is_refused_leaves_nothing(records, server, trouble, tmp_path):
    done = kbf("pretrain", "--records", records, "--output", OUTPUT, "--initial-model", tmp_path)
    assert_refused(done, "config.json", str(tmp_path))
    assert list_bucket(server[0]) == []
    done = kbf("pretrain", "--records", records, "--output", "s3://nobucket/x")
    assert_refused(done, "s3://nobucket/x")
    done = kbf("pretrain", "--records", records, "--output", OUTPUT, environment={"WORLD_SIZE": "2"})
    assert_refused(done, "one process", OUTPUT)
    assert not any((cache_root() / OUTPUTS).glob("*"))


COMMAND = """
import sys
from keras_bert_flow.results.manifest import MANIFEST, read_manifest
from keras_bert_flow.stores import publishing
from keras_bert_flow.stores.publishing import made_at
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.oracles.tiny_records import make_tiny_config
publishing.SYNC_SECONDS = 0.05
with made_at(sys.argv[2]) as place:
    pretrain(make_tiny_config(), sys.argv[1], place, lambda line: None)
"""


@pytest.mark.slow
def test_ten_kills_while_it_is_uploaded(records, tmp_path, server, trouble):
    here, kills = published(records, tmp_path), 0
    for moment in range(1, 40):
        child = subprocess.Popen([sys.executable, "-c", COMMAND, records, OUTPUT], cwd=os.getcwd())
        writes = 0

        def kill(number, method, path, child=child, moment=moment):
            nonlocal writes
            writes += method == "PUT"
            if writes >= 4 * moment:
                child.send_signal(signal.SIGKILL)

        trouble.decide = kill
        status = child.wait(PATIENCE_SECONDS)
        trouble.decide = lambda number, method, path: CUT if number % 7 == 0 else None
        there = objects(server)
        if status == 0:
            break
        kills += 1
        if "manifest.json" in there:
            stop_downloads()
            assert (fetch(OUTPUT) / "model" / "model.safetensors").read_bytes() == here["model/model.safetensors"]
        if moment % 2:
            forget_this_machine()
    assert status == 0 and kills >= 3
    there = {name: content for name, content in objects(server).items() if not name.startswith(".work")}
    assert there.keys() == here.keys() and there["model/model.safetensors"] == here["model/model.safetensors"]
