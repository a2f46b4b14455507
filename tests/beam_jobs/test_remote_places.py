"""Jobs that read text on HDFS, at S3 or at Google's store and publish there, over the protocol of each.

What they publish has the bytes of a disk, and is whole or not there, whatever is killed.
"""

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from apache_beam.io.filesystem import BeamIOError

from beam_jobs import publishing, storage
from beam_jobs.build_vocabulary import build_vocabulary
from beam_jobs.storage import BeamStorage
from keras_bert_flow.cli import app
from keras_bert_flow.config.text import VocabularyConfig
from keras_bert_flow.results.manifest import COSTS
from keras_bert_flow.stores.store import Store
from keras_bert_flow.text.corpus.inputs import find_inputs
from tests.beam_jobs.conftest import build, make_corpus, read_folder
from tests.beam_jobs.portable import portable_job_service, run_job, worker_pool
from tests.google_store import google_store
from tests.object_store import BUCKET, object_store
from tests.patience import PATIENCE_SECONDS
from tests.webhdfs import webhdfs

ROOT = Path(__file__).parents[2]
SLOW = pytest.mark.slow
MANIFEST = "manifest.json"


@contextmanager
def bucket(kind, folder):
    """Start an object store, and yield the address of its bucket, which this process and its children find."""
    for package in {"s3": ("boto3", "s3fs", "moto"), "gs": ("gcsfs", "gcp_storage_emulator")}[kind]:
        pytest.importorskip(package, reason="object stores need it")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        if kind == "gs":
            address, environment = stack.enter_context(google_store(folder))
        else:
            address, environment = f"s3://{BUCKET}", stack.enter_context(object_store(folder))
        for name, value in environment.items():
            patch.setenv(name, value)
        yield address, None


@pytest.fixture(scope="module", params=["hdfs", "s3", "gs"])
def service(request, tmp_path_factory):
    kind = request.param
    with webhdfs() if kind == "hdfs" else bucket(kind, tmp_path_factory.mktemp(kind)) as (address, files):
        yield address, files


@pytest.fixture
def output(service):
    return f"{service[0]}/{uuid.uuid4().hex}/r"


def below(address):
    """Return the content of every file below an address, by its name there."""
    store = Store(address)
    with suppress(FileNotFoundError):
        return {name: store.read(name) for name in store.list() if name != COSTS}
    return {}


def names_below(address):
    with suppress(FileNotFoundError):
        return [*Store(address).list()]
    return []


def entries_below(address):
    """Return the names of what lies directly below an address; on HDFS that includes empty folders."""
    store = Store(address)
    with suppress(FileNotFoundError):
        return sorted(path.rstrip("/").rpartition("/")[2] for path in store._files.ls(store._root, detail=False))
    return []


@pytest.mark.parametrize("exchange", ["files", pytest.param("engine", marks=pytest.mark.slow)])
@pytest.mark.first_form
def test_records_have_the_bytes_of_a_disk(exchange, output, built, corpus, vocabulary_file, monkeypatch):
    monkeypatch.setattr("beam_jobs.build_records.PART_BYTES", 20_000)  # several parts a shard, from the engine
    options = [f"--exchange={exchange}", "--direct_runner_bundle_repeat=1"]
    assert build(corpus, vocabulary_file, output, options=options) == output
    assert below(output) == read_folder(built)
    assert entries_below(output) == sorted(read_folder(built))
    monkeypatch.delattr("beam_jobs.build_records.run_pipeline")
    assert build(corpus, vocabulary_file, output) == output


@SLOW
def test_a_vocabulary_has_the_bytes_of_a_disk(output, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("beam_jobs.build_vocabulary.BUCKETS", 4)
    expected = read_folder(build_vocabulary(corpus, VocabularyConfig(size=200), tmp_path / "v"))
    build_vocabulary(corpus, VocabularyConfig(size=200), output, ["--exchange=engine"])
    assert below(output) == expected


@pytest.mark.parametrize("pattern", ["texts/a.txt", "texts", "texts/", "texts/*.txt", "**/a.txt"])
@pytest.mark.first_form
def test_remote_text_is_that_of_a_disk(pattern, output, built, corpus, vocabulary_file, tmp_path):
    store = Store(output.removesuffix("/r"))
    store.upload(Path(corpus.input[0]), "texts/a.txt")
    store.write("texts/deeper/notes.pdf", b"not text")
    there = corpus.model_copy(update={"input": (f"{store.address}/{pattern}",)})
    assert find_inputs(there.input, BeamStorage()) == [f"{store.address}/texts/a.txt"]
    if pattern == "texts":
        build(there, vocabulary_file, tmp_path / "r")
        records = {name: content for name, content in read_folder(built).items() if ".tfrecord" in name}
        made = read_folder(tmp_path / "r")
        assert {name: made[name] for name in records} == records


@SLOW
def test_what_is_there_is_never_replaced(output, corpus, vocabulary_file):
    store = Store(output)
    store.write("notes/mine.txt", b"mine")
    with pytest.raises(FileExistsError, match="must be new.*which holds notes/mine.txt"):
        build(corpus, vocabulary_file, output)
    assert below(output) == {"notes/mine.txt": b"mine"}
    store.remove("notes/mine.txt")
    build(corpus, vocabulary_file, output)
    before = below(output)
    with pytest.raises(FileExistsError, match="must be new.*which holds another result"):
        build(corpus, vocabulary_file, output, seed=2)
    assert below(output) == before
    store.remove("train-00001-of-00002.tfrecord")
    with pytest.raises(FileExistsError, match="train-00001-of-00002.tfrecord, which is not"):
        build(corpus, vocabulary_file, output)


@SLOW
def test_leftovers_of_dead_jobs_go_and_those_of_living_ones_stay(output, corpus, vocabulary_file, built, monkeypatch):
    store = Store(output)

    def leave(name, host, process):
        store.write(f".work/{name}/lease.json", json.dumps({"host": host, "process": process}).encode())
        store.write(f".work/{name}/attempts/x/part", b"part")

    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    leave("dead", socket.gethostname(), dead.pid)
    leave("living", socket.gethostname(), os.getpid())
    leave("elsewhere", "another-machine", dead.pid)
    store.write("train-00002-of-00003.tfrecord", b"of another number")
    build(corpus, vocabulary_file, output)
    found = below(output)
    assert {name for name in found if name.startswith(".work/")} == {
        f".work/{name}/{file}" for name in ("living", "elsewhere") for file in ("lease.json", "attempts/x/part")
    }
    assert {name: content for name, content in found.items() if not name.startswith(".work/")} == read_folder(built)
    assert entries_below(f"{output}/.work") == ["elsewhere", "living"]
    store.remove(MANIFEST)
    monkeypatch.setattr(publishing, "QUIET_SECONDS", -60.0)  # by now all are taken for dead
    build(corpus, vocabulary_file, output)
    assert below(output) == read_folder(built) and ".work" not in entries_below(output)
    leave("killed once it had published", "another-machine", dead.pid)
    build(corpus, vocabulary_file, output)
    assert below(output) == read_folder(built) and ".work" not in entries_below(output)


MOMENTS = {
    "lease": lambda found: any(name.endswith("lease.json") for name in found),
    "part": lambda found: any("/attempts/" in name for name in found),
    "parts": lambda found: sum("/attempts/" in name for name in found) > 5,
    "shard": lambda found: any(
        name.startswith(".work/") and name.count("/") == 2 and "train" in name for name in found
    ),
    "results": lambda found: any("results" in name for name in found),
    "named": lambda found: any(name.startswith("train-") for name in found),
    "manifest": lambda found: any(name.endswith(MANIFEST) for name in found),
}


@SLOW
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_job_leaves_nothing_that_looks_finished(moment, output, built, corpus, vocabulary_file):
    Store(output.removesuffix("/r")).write("other/.work/x/part", b"of another output")
    command = [sys.executable, "-m", "tests.beam_jobs.job", *corpus.input, vocabulary_file, output]
    job = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not MOMENTS[moment](names_below(output)) and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    job.kill()
    job.communicate()
    left = {name: content for name, content in below(output).items() if not name.startswith(".work/")}
    assert MANIFEST not in left or left == read_folder(built)
    build(corpus, vocabulary_file, output)
    assert below(output) == read_folder(built)
    assert below(f"{output.removesuffix('/r')}/other") == {".work/x/part": b"of another output"}


@SLOW
def test_a_failed_job_leaves_nothing(output, vocabulary_file, tmp_path):
    with pytest.raises(ValueError, match="must hold"):
        build(make_corpus(tmp_path / "a.txt", "\n\n"), vocabulary_file, output)
    assert entries_below(output) == []


@SLOW
def test_a_worker_pool_needs_no_shared_folder(output, built, corpus, vocabulary_file, tmp_path, monkeypatch):
    (tmp_path / "pool").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "pool"))  # of the pool, and of nothing else
    with worker_pool(tmp_path / "pool") as pool:
        monkeypatch.delenv("TMPDIR")
        with portable_job_service(tmp_path) as service:
            options = [option for option in service if not option.startswith("--environment_type")]
            run_job(corpus, vocabulary_file, output, *options, *pool)
    assert below(output) == read_folder(built)


@pytest.mark.first_form
def test_a_step_that_is_retried_finds_its_file_named(output):
    Store(output).write("attempts/x/train", b"records")
    for _ in range(2):
        storage.put({f"{output}/attempts/x/train": f"{output}/train"})
    assert below(output)["train"] == b"records"
    with pytest.raises((OSError, BeamIOError), match=rf"{output}/(missing|other)"):
        storage.put({f"{output}/missing": f"{output}/other"})


@pytest.mark.parametrize(
    ("address", "options", "words"),
    [
        ("hdfs://namenode/r", [], "must name the host and the port of WebHDFS. Received: hdfs://namenode"),
        ("hdfs://127.0.0.1:1/r", [], "must be reachable. Received: hdfs://127.0.0.1:1/r.*refused"),
        ("hdfs://127.0.0.1:1/r", ["--hdfs_host=h"], "HDFS must be addressed as .* Received: --hdfs_host."),
    ],
)
def test_the_command_refuses_before_work(address, options, words, corpus, vocabulary_file, monkeypatch):
    monkeypatch.delattr("beam_jobs.build_records.run_pipeline")
    arguments = ["records", "--vocab", str(vocabulary_file), "--input", *corpus.input, "--output", address, *options]
    with pytest.raises((ValueError, OSError), match=words) as caught:
        app(arguments, standalone_mode=False)
    assert "\n" not in str(caught.value)


def test_a_folder_without_rights_is_refused_before_work(service, output, corpus, vocabulary_file, monkeypatch):
    if service[1] is None:
        pytest.skip("only the small WebHDFS can be told to refuse")
    monkeypatch.delattr("beam_jobs.build_records.run_pipeline")
    monkeypatch.setattr(service[1], "forbidden", ("/user/test",))
    with pytest.raises((ValueError, OSError), match=r"must be reachable. Received: .*Permission denied"):
        build(corpus, vocabulary_file, output)
