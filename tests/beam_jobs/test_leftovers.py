"""Files of jobs: gone after a kill, sooner or later, and never another job's."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest

from beam_jobs import running
from beam_jobs.running import QUIET_SECONDS, remove_leftovers
from keras_bert_flow.results.artifacts import publishing
from tests.beam_jobs.conftest import build, names_in, read_folder
from tests.beam_jobs.portable import run_job
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


def make_leftover(parent, name="killed", age_seconds=2 * QUIET_SECONDS):
    """Make what a killed job leaves, with everything in it so old, and return its work folder."""
    work = parent / f".{name}.work"
    work.mkdir(parents=True)
    folder = work / f".{uuid.uuid4().hex}"
    (folder / "records").mkdir(parents=True)
    (folder / "records" / "run").write_bytes(b"a")
    written_at = time.time() - age_seconds
    for path in (folder / "records" / "run", folder / "records", folder):
        os.utime(path, (written_at, written_at))
    (parent / f".{name}.lock").touch()
    return work


def test_leftovers_of_another_output_are_removed_when_they_are_old(tmp_path):
    make_leftover(tmp_path)
    remove_leftovers(tmp_path)
    assert names_in(tmp_path) == []


def test_leftovers_stay_where_something_in_them_is_young(tmp_path):
    work = make_leftover(tmp_path)
    os.utime(next(work.rglob("run")))
    remove_leftovers(tmp_path)
    assert next(work.rglob("run")).exists()


def test_leftovers_of_no_job_stay(tmp_path):
    work = make_leftover(tmp_path)
    (work / "step-00000500").mkdir()  # a resumable stage's
    os.utime(work / "step-00000500", (0, 0))
    (tmp_path / ".notes.work").touch()
    remove_leftovers(tmp_path)
    assert names_in(work) == ["step-00000500"]
    assert names_in(tmp_path) == [".killed.work", ".notes.work"]


def test_leftovers_of_a_job_that_holds_its_lock_stay(tmp_path):
    make_leftover(tmp_path, "other")
    with publishing(tmp_path / "slow") as work:
        folder = work / f".{uuid.uuid4().hex}"
        folder.mkdir()
        (folder / "run").touch()
        for path in (folder / "run", folder):
            os.utime(path, (0, 0))
        remove_leftovers(tmp_path)
        assert (folder / "run").exists()
        assert names_in(tmp_path) == [".slow.lock", ".slow.work"]
        (folder / "run").unlink()
        folder.rmdir()


@pytest.mark.slow
def test_killed_job_s_files_go_with_the_next_job_of_another_output(corpus, vocabulary_file, tmp_path, monkeypatch):
    parent = tmp_path / "out"
    command = [sys.executable, "-m", "tests.beam_jobs.job", *corpus.input, vocabulary_file, parent / "killed"]
    job = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not any(parent.glob(".killed.work/.*/*/*")) and job.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    job.send_signal(signal.SIGKILL)
    assert job.wait() == -signal.SIGKILL
    assert any(parent.glob(".killed.work/.*/*/*"))  # files on their way from step to step
    build(corpus, vocabulary_file, parent / "young")
    assert names_in(parent) == [".killed.lock", ".killed.work", "young"]
    monkeypatch.setattr(running, "QUIET_SECONDS", 0)
    build(corpus, vocabulary_file, parent / "old")
    assert names_in(parent) == ["old", "young"]


@pytest.mark.slow
def test_jobs_at_once_do_not_meet(built, corpus, vocabulary_file, tmp_path):
    parent, errors = tmp_path / "out", []
    make_leftover(parent)

    def run(name):
        try:
            run_job(corpus, vocabulary_file, parent / name)
        except subprocess.SubprocessError as error:
            errors.append(error)

    jobs = [threading.Thread(target=run, args=(name,)) for name in ("same", "same", "other")]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join(PATIENCE_SECONDS)
    assert not errors and names_in(parent) == ["other", "same"]
    assert read_folder(parent / "other") == read_folder(parent / "same") == read_folder(built)


@pytest.mark.parametrize("failing", [OSError("no stat"), PermissionError(13, "another user's")])
def test_leftovers_that_cannot_be_looked_at_are_no_obstacle(failing, tmp_path, monkeypatch):
    make_leftover(tmp_path)

    def fail(folder, pattern):
        raise failing

    monkeypatch.setattr(Path, "rglob", fail)
    remove_leftovers(tmp_path)
    assert names_in(tmp_path) == [".killed.lock", ".killed.work"]
