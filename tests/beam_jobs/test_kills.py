"""Kill -9, a full disk, and workers that outlive their job: nothing that looks finished, and the next run is whole."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from beam_jobs.build_records import ShardPlan, join_parts, write_part
from beam_jobs.running import job_folder
from keras_bert_flow.results.artifacts import publishing
from keras_bert_flow.results.manifest import check_folder
from tests.beam_jobs.conftest import names_in, read_folder
from tests.commands import assert_refused
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
TWO_WORKERS = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")


def command_for(stage, corpus, vocabulary_file, output, *options):
    settings = {
        "vocab": ("--size", "1200"),
        "records": ("--vocab", vocabulary_file, "--sequence-length", "32", "--max-predictions", "5"),
    }
    arguments = (stage, "--input", *corpus.input, "--output", output, *settings[stage], *options)
    return [sys.executable, "-m", "keras_bert_flow", *map(str, arguments)]


def start(command):
    return subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": "."}
    )


def run(command):
    assert start(command).wait(timeout=PATIENCE_SECONDS) == 0


def wait_for(happened, job):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not happened() and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)


def exists(folder, pattern):
    with contextlib.suppress(FileNotFoundError):
        return any(folder.rglob(pattern))
    return False


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), TWO_WORKERS], ids=["one process", "two workers"])
@pytest.mark.parametrize("stage", ["vocab", "records"])
def test_killed_command_leaves_nothing_that_a_reader_accepts(stage, options, corpus, vocabulary_file, tmp_path):
    run(command_for(stage, corpus, vocabulary_file, tmp_path / "whole"))
    whole = read_folder(tmp_path / "whole")
    results = "*results*" if stage == "vocab" else "*.tfrecord"
    moments = [
        lambda work: work.exists(),
        lambda work: exists(work, results),
        lambda work: exists(work, "vocab.txt"),
        lambda work: exists(work, ".manifest.json*") or exists(work, "manifest.json"),
    ]
    output = tmp_path / "out" / "r"
    for happened in moments:
        job = start(command_for(stage, corpus, vocabulary_file, output, *options))
        wait_for(lambda: happened(output.parent / ".r.work"), job)  # noqa: B023
        job.send_signal(signal.SIGKILL)
        job.wait()
        if output.exists():  # it was quicker
            shutil.rmtree(output)
        with pytest.raises(FileNotFoundError):
            check_folder(output)
        run(command_for(stage, corpus, vocabulary_file, output, *options))
        check_folder(output)
        assert read_folder(output) == whole
        assert names_in(output.parent) == ["r"]
        shutil.rmtree(output)


def test_worker_that_outlives_its_job_writes_nothing_into_the_next(tmp_path):
    def write(number, record, folder):
        parts = [part for _, part in write_part(number, iter([record]), plan, str(folder))]
        list(join_parts((number, parts), plan, str(folder)))

    work, plan = tmp_path / ".r.work", ShardPlan(2, 1, 1)
    work.mkdir()
    with job_folder(work) as killed:  # as far as a kill lets it come
        write(1, b"8 bytes old", killed)
        with publishing(tmp_path / "r") as work, job_folder(work) as folder:
            write(0, b"8 bytes new", folder)
            with pytest.raises(FileNotFoundError):
                write(0, b"8 bytes old", killed)
        killed.mkdir(parents=True)
    name = "train-00000-of-00002.tfrecord"
    assert names_in(tmp_path / "r") == [name, f"{name}.index"]
    assert b"new" in (tmp_path / "r" / name).read_bytes()


def test_job_folder_keeps_no_failed_attempt(tmp_path):
    with job_folder(tmp_path) as folder:
        (folder / ".attempt").mkdir()
        (folder / ".attempt" / "train.tfrecord").touch()
        (folder / "held_out.tfrecord").touch()
    assert names_in(tmp_path) == ["held_out.tfrecord"]


@pytest.mark.slow
@pytest.mark.parametrize("stage", [pytest.param("vocab", marks=pytest.mark.slow), "records"])
@pytest.mark.first_form
def test_file_beyond_the_limit_is_one_line_that_names_the_folder(stage, corpus, vocabulary_file, tmp_path):
    command = command_for(stage, corpus, vocabulary_file, tmp_path / "out" / "r")
    # A limit of 4 KiB a file: a disk that is full, as far as the process can tell. A shell sets it, since to fork this
    # process, in which gRPC may have threads, can abort. Python 3.11 keeps of a module what it wrote until the limit.
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 8 && exec "$@"', "sh", *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert_refused((done.returncode, done.stdout, done.stderr), "must fit on its disk", str(tmp_path / "out" / "r"))
    assert names_in(tmp_path / "out") == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stage", "room"),
    [
        ("vocab", "16k"),
        *(("records", room) for room in ("16k", "100k", "300k", "500k")),
    ],  # full at one step or the next
)
def test_full_disk_is_one_line_that_names_the_folder(stage, room, corpus, vocabulary_file, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={room}", "none", disk]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        done = subprocess.run(
            command_for(stage, corpus, vocabulary_file, disk / "r"),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert_refused((done.returncode, done.stdout, done.stderr), "no space left on device", str(disk / "r"))
        assert names_in(disk) == []
    finally:
        subprocess.run(["umount", disk], check=True)
