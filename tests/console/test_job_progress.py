import multiprocessing
import os

from keras_bert_flow.console import job_progress
from keras_bert_flow.console.job_progress import (
    DOCUMENTS,
    MB,
    VARIABLE,
    JobPart,
    expect,
    following_job,
    note,
    plan_parts,
)

NOTES = 2_000
READING, MASKING, CHOOSING = JobPart("reading", MB), JobPart("masking", DOCUMENTS), JobPart("choosing pieces")
COPYING = JobPart("copying", DOCUMENTS)


def note_often(number):
    for _ in range(NOTES):
        expect("documents", 2)
        note(COPYING, 0.25)


def test_parts_are_counted_in_their_order(monkeypatch):
    clock = iter(range(0, 100, 10))
    monkeypatch.setattr(job_progress.time, "monotonic", lambda: next(clock))
    with following_job() as job:
        assert job.describe() == ""
        plan_parts(READING, MASKING, CHOOSING)
        note(READING, 1.25)
        assert job.describe() == "part 1 of 3, reading: 1 MB"
        expect("MB", 5)
        note(READING, 1.25)
        assert job.describe() == "part 1 of 3, reading: 2 of 5 MB, 0:00:20 left of it"
        expect("documents", 1_500)
        note(MASKING, 1_200)
        assert job.describe() == "part 2 of 3, masking: 1,200 of 1,500 documents"
        note(MASKING, 1_200)  # a bundle that failed was done again
        assert job.read()["masking"] == (1_500, 1_500, "documents")
        note(CHOOSING, 0)
        assert job.describe() == "part 3 of 3, choosing pieces"


def test_lines_of_processes_do_not_mix():
    with following_job() as job:
        plan_parts(COPYING)
        with multiprocessing.get_context("spawn").Pool(4) as pool:
            pool.map(note_often, range(4))
        assert job.read() == {"copying": (NOTES, 8 * NOTES, DOCUMENTS)}


def test_a_line_that_is_being_written_is_read_when_it_is_whole():
    with following_job() as job:
        plan_parts(CHOOSING)
        with open(os.environ[VARIABLE], "ab", buffering=0) as file:
            file.write(b"choosing pieces\t=")
            assert job.read() == {}
            file.write(b"\t2.0\n")
        assert job.read() == {"choosing pieces": (2, 0, "")}


def test_nothing_is_left_where_no_command_waits(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    with following_job():
        file = os.environ[VARIABLE]
        with following_job():
            assert os.environ[VARIABLE] != file
        assert os.environ[VARIABLE] == file
    assert VARIABLE not in os.environ and not os.path.exists(file)
    note(READING)


def test_a_worker_that_outlives_its_command_leaves_no_file(monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "removed"))
    note(READING)
    assert list(tmp_path.iterdir()) == []
