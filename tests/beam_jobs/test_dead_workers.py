"""A job whose worker is killed, as by a system that is out of memory, ends and says so; Beam's runner waits forever."""

import subprocess
import sys
from pathlib import Path

import pytest

from beam_jobs.running import ending_with_workers
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
JOB = """
import sys
from pathlib import Path
import apache_beam as beam
from beam_jobs import running
from beam_jobs.running import run_pipeline
def die(number):
    import os, time
    if number == 50:
        os.kill(os.getpid(), 9)
    time.sleep(0.01)
    return number
running.GRACE_SECONDS = 0.5
build = lambda pipeline: pipeline | beam.Create(range(100)) | beam.Reshuffle() | beam.Map(die)
run_pipeline(build, ["--direct_num_workers=2", "--direct_running_mode=multi_processing"], Path(sys.argv[1]))
"""
LINE = "A worker process of Apache Beam was killed by signal 9. Give the machine more memory, or take --direct_num_work"


def test_job_ends_whose_worker_is_killed(tmp_path):
    command = (sys.executable, "-c", JOB, tmp_path)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 1
    assert any(LINE in line for line in done.stderr.splitlines()), done.stderr


def test_failure_of_the_runner_without_a_dead_worker_is_its_own():
    with pytest.raises(RuntimeError, match="^closed$"), ending_with_workers():
        raise RuntimeError("closed")
