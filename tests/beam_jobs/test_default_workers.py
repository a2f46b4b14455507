"""`kbf records` without options of Beam: worker processes where the text is large, and the same bytes."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_bert_flow.checks.estimates import MOST_WORKERS
from tests.beam_jobs.conftest import as_text, make_documents, read_folder
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]


def count_workers(pid: int) -> int:
    """Count the worker processes of Beam among the descendants of a process."""
    workers = 0
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in map(int, children.read_text().split()):
                is_worker = b"python" in (command := Path(f"/proc/{child}/cmdline").read_bytes()).split(b"\0")[0]
                workers += (is_worker and b"sdk_worker_main" in command) + count_workers(child)
        except OSError:
            continue
    return workers


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.slow
def test_command_starts_workers_for_much_text_and_writes_the_same_bytes(vocabulary_file, tmp_path):
    """One line of 15 MB, too long to be read as text, makes a small corpus count as a large one."""
    text = tmp_path / "corpus.txt"
    text.write_bytes(as_text(make_documents()).encode() + b"x" * 15_000_000 + b"\n")
    command = [sys.executable, "-m", "keras_bert_flow", "records", "--input", text, "--vocab", vocabulary_file]
    command += ["--max-rejected-share", "1", "--sequence-length", "32", "--max-predictions", "5"]
    most = {}
    for name, options in {"default": [], "one": ["--direct_num_workers=1"]}.items():
        with open(tmp_path / f"{name}.err", "wb") as errors:
            job = subprocess.Popen(
                [*command, "--output", tmp_path / name, *options], cwd=ROOT, stdout=errors, stderr=errors
            )
        deadline = time.monotonic() + PATIENCE_SECONDS
        most[name] = 0
        while job.poll() is None and time.monotonic() < deadline:
            most[name] = max(most[name], count_workers(job.pid))
            time.sleep(0.02)
        assert job.wait(timeout=1) == 0
    assert most["one"] == 0
    assert 2 <= most["default"] <= MOST_WORKERS
    assert read_folder(tmp_path / "default") == read_folder(tmp_path / "one")
    printed = (tmp_path / "default.err").read_text()  # workers add nothing to it
    assert printed == (tmp_path / "one.err").read_text().replace(str(tmp_path / "one"), str(tmp_path / "default"))
