"""Outputs at S3: killed workers, a store that fails, and what is S3's own; `test_remote_places.py` has the rest."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from apache_beam.io.filesystems import FileSystems

from beam_jobs import storage
from keras_bert_flow.cli import app
from tests.beam_jobs.conftest import build, read_folder
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
def test_an_empty_shard_is_there(store, corpus, vocabulary_file, tmp_path):
    settings = {"held_out_fraction": 0, "shards": 1}
    build(corpus, vocabulary_file, OUTPUT, **settings)
    assert below(store)["held_out-00000-of-00001.tfrecord"] == b""
    assert below(store) == read_folder(build(corpus, vocabulary_file, tmp_path / "r", **settings))


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
    "part": lambda found: any("/attempts/" in name for name in found),
    "parts": lambda found: sum("/attempts/" in name for name in found) > 5,
    "shard": lambda found: any(
        name.startswith(".work/") and name.count("/") == 2 and "train" in name for name in found
    ),
    "results": lambda found: any("results" in name for name in found),
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


@SLOW
@pytest.mark.parametrize("verdict", [BUSY, CUT])
def test_a_store_that_fails_at_times_is_asked_again(verdict, store, built, corpus, vocabulary_file, monkeypatch):
    with troubled(store["AWS_ENDPOINT_URL"]) as proxy:
        proxy.decide = lambda number, method, path: verdict if number % 4 == 1 else None
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        build(corpus, vocabulary_file, OUTPUT)
        assert len(proxy.seen) > 40
    assert below(store) == read_folder(built)


@pytest.mark.slow
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
        storage.put(pairs)
    assert sorted(met) == [0, 1, 2, 3]
    assert below(store) == {
        name: f"out/r/.work/x/{number}".encode() for number in range(40) for name in (f"{number}", f".work/x/{number}")
    }


def test_a_copy_that_fails_is_no_result(store):
    with pytest.raises(OSError, match=rf"copied within its store\. Received: {OUTPUT}/b: .*Run the same command"):
        storage.put({f"{OUTPUT}/missing": f"{OUTPUT}/b"})


@pytest.mark.slow
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
