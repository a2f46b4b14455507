"""Outputs in an object store, over S3's own protocol: the bytes of a disk, whole or not there, whatever is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from apache_beam.io.filesystems import FileSystems

from beam_jobs import places, publishing
from beam_jobs.build_vocabulary import build_vocabulary
from keras_bert_flow.cli import app
from keras_bert_flow.config.vocabulary import VocabularyConfig
from tests.beam_jobs.conftest import build, make_corpus, read_folder
from tests.beam_jobs.portable import portable_job_service, run_job, worker_pool
from tests.object_store import BUCKET, client, list_bucket, object_store, read_bucket
from tests.patience import PATIENCE_SECONDS
from tests.troubled_store import BUSY, CUT, troubled

boto3 = pytest.importorskip("boto3", reason="object stores need boto3")
pytest.importorskip("moto", reason="the server is moto's")

ROOT = Path(__file__).parents[2]
SLOW = pytest.mark.slow
OUTPUT = f"s3://{BUCKET}/out/r"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with object_store(tmp_path_factory.mktemp("store")) as environment:
        yield environment


@pytest.fixture
def store(server, monkeypatch):
    """Empty the bucket and let this process and its children find the server; return its environment."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    for key in read_bucket(server):
        client(server).delete_object(Bucket=BUCKET, Key=key)
    return server


def below(store, prefix="out/r"):
    """Return the content of every object below a prefix, by the rest of its name."""
    return {key.removeprefix(f"{prefix}/"): content for key, content in read_bucket(store).items() if prefix in key}


def names_below(store):
    """Return the names of the objects of the output, some of which may be gone a moment later."""
    return [key.removeprefix("out/r/") for key in list_bucket(store) if key.startswith("out/r/")]


@SLOW
@pytest.mark.parametrize("exchange", ["files", "engine"])
def test_records_have_the_bytes_of_a_disk(exchange, store, built, corpus, vocabulary_file, monkeypatch):
    monkeypatch.setattr("beam_jobs.sharding.PART_BYTES", 20_000)  # several parts a shard, from the engine
    options = [f"--exchange={exchange}", "--direct_runner_bundle_repeat=1"]
    assert build(corpus, vocabulary_file, OUTPUT, options=options) == OUTPUT
    assert below(store) == read_folder(built)
    monkeypatch.delattr("beam_jobs.build_records.run_pipeline")
    assert build(corpus, vocabulary_file, OUTPUT) == OUTPUT


@SLOW
def test_a_vocabulary_has_the_bytes_of_a_disk(store, corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("beam_jobs.build_vocabulary.BUCKETS", 4)
    expected = read_folder(build_vocabulary(corpus, VocabularyConfig(size=200), tmp_path / "v"))
    build_vocabulary(corpus, VocabularyConfig(size=200), OUTPUT, ["--exchange=engine"])
    assert below(store) == expected


@SLOW
def test_an_empty_shard_is_there(store, corpus, vocabulary_file, tmp_path):
    settings = {"held_out_fraction": 0, "shards": 1}
    build(corpus, vocabulary_file, OUTPUT, **settings)
    assert below(store)["held_out-00000-of-00001.tfrecord"] == b""
    assert below(store) == read_folder(build(corpus, vocabulary_file, tmp_path / "r", **settings))


@SLOW
def test_what_is_there_is_never_replaced(store, corpus, vocabulary_file):
    client(store).put_object(Bucket=BUCKET, Key="out/r/notes/mine.txt", Body=b"mine")
    with pytest.raises(FileExistsError, match="must be new.*which holds notes/mine.txt"):
        build(corpus, vocabulary_file, OUTPUT)
    assert below(store) == {"notes/mine.txt": b"mine"}
    client(store).delete_object(Bucket=BUCKET, Key="out/r/notes/mine.txt")
    build(corpus, vocabulary_file, OUTPUT)
    before = below(store)
    with pytest.raises(FileExistsError, match="must be new.*which holds another result"):
        build(corpus, vocabulary_file, OUTPUT, seed=2)
    assert below(store) == before
    client(store).delete_object(Bucket=BUCKET, Key="out/r/train-00001-of-00002.tfrecord")
    with pytest.raises(FileExistsError, match="train-00001-of-00002.tfrecord, which is not"):
        build(corpus, vocabulary_file, OUTPUT)


@SLOW
def test_leftovers_of_dead_jobs_go_and_those_of_living_ones_stay(store, corpus, vocabulary_file, built):
    def leave(name, host, process):
        lease = json.dumps({"host": host, "process": process}).encode()
        client(store).put_object(Bucket=BUCKET, Key=f"out/r/.work/{name}/lease.json", Body=lease)
        client(store).put_object(Bucket=BUCKET, Key=f"out/r/.work/{name}/attempts/x/part", Body=b"part")

    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    leave("dead", socket.gethostname(), dead.pid)
    leave("living", socket.gethostname(), os.getpid())
    leave("elsewhere", "another-machine", dead.pid)
    client(store).put_object(Bucket=BUCKET, Key="out/r/train-00002-of-00003.tfrecord", Body=b"of another number")
    client(store).put_object(Bucket=BUCKET, Key="out/other/.work/x/part", Body=b"of another output")
    build(corpus, vocabulary_file, OUTPUT)
    found = below(store)
    assert {name for name in found if name.startswith(".work/")} == {
        f".work/{name}/{file}" for name in ("living", "elsewhere") for file in ("lease.json", "attempts/x/part")
    }
    assert {name: content for name, content in found.items() if not name.startswith(".work/")} == read_folder(built)
    assert below(store, "out/other") == {".work/x/part": b"of another output"}


@SLOW
def test_a_silent_job_is_taken_for_dead(store, corpus, vocabulary_file, monkeypatch):
    lease = json.dumps({"host": "another-machine", "process": 1}).encode()
    client(store).put_object(Bucket=BUCKET, Key="out/r/.work/silent/lease.json", Body=lease)
    monkeypatch.setattr(publishing, "QUIET_SECONDS", -60.0)
    build(corpus, vocabulary_file, OUTPUT)
    assert not [name for name in below(store) if name.startswith(".work/")]


def workers_of(job):
    """Return the processes of Beam's workers that a job started, itself or through a shell."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    below = {job}
    while more := {process for process, parent in parents.items() if parent in below} - below:
        below |= more
    return sorted(process for process in below if b"sdk_worker_main" in Path(f"/proc/{process}/cmdline").read_bytes())


MOMENTS = {
    "lease": lambda found: any(name.endswith("lease.json") for name in found),
    "part": lambda found: any("/attempts/" in name for name in found),
    "parts": lambda found: sum("/attempts/" in name for name in found) > 5,
    "shard": lambda found: any(
        name.startswith(".work/") and name.count("/") == 2 and "train" in name for name in found
    ),
    "results": lambda found: any("results" in name for name in found),
    "named": lambda found: any(name.startswith("train-") for name in found),
    "vocabulary": lambda found: "vocab.txt" in found,
}


def start_job(store, corpus, vocabulary_file, moment, *options):
    """Start a job of the output, and return it at that moment."""
    client(store).put_object(Bucket=BUCKET, Key="out/other/.work/x/part", Body=b"of another output")
    command = [sys.executable, "-m", "tests.beam_jobs.job", *corpus.input, vocabulary_file, OUTPUT, *options]
    job = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not MOMENTS[moment](names_below(store)) and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return job


def assert_whole_after_another_run(store, built, corpus, vocabulary_file):
    """What is there after a kill is unfinished for every reader, and a second run ends with the bytes of a disk."""
    assert "manifest.json" not in below(store) or below(store) == read_folder(built)
    build(corpus, vocabulary_file, OUTPUT)
    assert below(store) == read_folder(built)
    assert below(store, "out/other") == {".work/x/part": b"of another output"}


@SLOW
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_job_leaves_nothing_that_looks_finished(moment, store, built, corpus, vocabulary_file):
    job = start_job(store, corpus, vocabulary_file, moment)
    job.kill()
    job.communicate()
    assert_whole_after_another_run(store, built, corpus, vocabulary_file)


@SLOW
@pytest.mark.parametrize("moment", ["part", "parts", "shard", "results"])
def test_a_killed_worker_ends_its_job_which_leaves_nothing_that_looks_finished(
    moment, store, built, corpus, vocabulary_file
):
    options = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
    job = start_job(store, corpus, vocabulary_file, moment, *options)
    try:
        os.kill(workers_of(job.pid)[0], signal.SIGKILL)
        _, error = job.communicate(timeout=PATIENCE_SECONDS)
    finally:
        job.kill()
    if moment == "results" and job.returncode == 0:  # the worker had nothing left to do
        assert below(store) == read_folder(built)
        return
    assert job.returncode not in (0, -signal.SIGKILL)
    assert any("A worker process of Apache Beam was killed by signal 9" in line for line in error.splitlines()), error
    assert_whole_after_another_run(store, built, corpus, vocabulary_file)


@pytest.mark.slow
def test_a_failed_job_leaves_nothing(store, vocabulary_file, tmp_path):
    with pytest.raises(ValueError, match="must hold"):
        build(make_corpus(tmp_path / "a.txt", "\n\n"), vocabulary_file, OUTPUT)
    assert below(store) == {}


@SLOW
@pytest.mark.parametrize("verdict", [BUSY, CUT])
def test_a_store_that_fails_at_times_is_asked_again(verdict, store, built, corpus, vocabulary_file, monkeypatch):
    with troubled(store["AWS_ENDPOINT_URL"]) as proxy:
        proxy.decide = lambda number, method, path: verdict if number % 4 == 1 else None
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        build(corpus, vocabulary_file, OUTPUT)
        assert len(proxy.seen) > 40
    assert below(store) == read_folder(built)


def test_files_are_copied_some_at_a_time(store, monkeypatch):
    pairs = {f"{OUTPUT}/.work/x/{number}": f"{OUTPUT}/{number}" for number in range(40)}
    for source in pairs:
        key = source.removeprefix(f"s3://{BUCKET}/")
        client(store).put_object(Bucket=BUCKET, Key=key, Body=key.encode())
    together, met = threading.Barrier(4), []
    with troubled(store["AWS_ENDPOINT_URL"]) as proxy:
        # Each of the first four requests waits for the three others.
        proxy.decide = lambda number, method, path: met.append(together.wait(20)) if number <= 4 else None
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        places.put(pairs)
    assert sorted(met) == [0, 1, 2, 3]
    assert below(store) == {
        name: f"out/r/.work/x/{number}".encode() for number in range(40) for name in (f"{number}", f".work/x/{number}")
    }


def test_a_copy_that_fails_is_no_result(store):
    with pytest.raises(OSError, match=rf"copied within its store\. Received: {OUTPUT}/b: .*Run the same command"):
        places.put({f"{OUTPUT}/missing": f"{OUTPUT}/b"})


@SLOW
def test_a_worker_pool_needs_no_shared_folder(store, built, corpus, vocabulary_file, tmp_path, monkeypatch):
    (tmp_path / "pool").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "pool"))  # of the pool, and of nothing else
    with worker_pool(tmp_path / "pool") as pool:
        monkeypatch.delenv("TMPDIR")
        with portable_job_service(tmp_path) as service:
            options = [option for option in service if not option.startswith("--environment_type")]
            run_job(corpus, vocabulary_file, OUTPUT, *options, *pool)
    assert below(store) == read_folder(built)


def test_files_are_refused_where_workers_do_not_share_them(store, corpus, vocabulary_file):
    options = ["--runner=PortableRunner", "--job_endpoint=localhost:1", "--exchange=files"]
    with pytest.raises(ValueError, match="must have an output on a disk that all workers share"):
        build(corpus, vocabulary_file, OUTPUT, options=options)
    assert below(store) == {}


@pytest.mark.parametrize(
    ("output", "options", "words"),
    [
        ("s3://no-such-bucket/r", [], "must be reachable. Received: s3://no-such-bucket/r"),
        ("nowhere://bucket/r", [], "A path must be local or one of"),
        (OUTPUT, ["--s3_endpoint_url=http://127.0.0.1:9"], "An object store must answer.*127.0.0.1:9.*refused"),
        (
            OUTPUT,
            ["--s3_secret_access_key=hush"],
            "Credentials must come from the environment.*--s3_secret_access_key,",
        ),
    ],
)
def test_the_command_refuses_before_work(output, options, words, store, corpus, vocabulary_file, monkeypatch):
    monkeypatch.delattr("beam_jobs.build_records.run_pipeline")
    arguments = ["records", "--vocab", str(vocabulary_file), "--input", *corpus.input, "--output", output, *options]
    with pytest.raises(ValueError, match=words) as caught:
        app(arguments, standalone_mode=False)
    assert "hush" not in str(caught.value) and "\n" not in str(caught.value)


@SLOW
def test_the_command_publishes_and_prints_the_place(store, corpus, tmp_path, capsys):
    arguments = ["vocab", "--input", *corpus.input, "--output", OUTPUT, "--size", "200"]
    app([*arguments, "--set", "corpus.lines=sentences", "--exchange=engine"], standalone_mode=False)
    assert capsys.readouterr().out.strip() == OUTPUT
    assert sorted(below(store)) == ["manifest.json", "vocab.txt"]
    assert FileSystems.exists(f"{OUTPUT}/vocab.txt")
