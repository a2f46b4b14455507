import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from prefect.client.schemas.objects import StateType

from flows import deployments
from flows.deployments import _find_end


@pytest.fixture
def zombie():
    """The number of a process that has ended, and that its parent does not wait for."""
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    yield child.pid
    child.wait()


@pytest.fixture
def gone():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def find_end(state, number):
    state = _find_end(SimpleNamespace(state_type=state, infrastructure_pid=number))
    return None if state is None else state.type


def test_run_has_ended_as_its_process_has(zombie, gone):
    for number in (zombie, gone):
        for pid in (str(number), f"host:{number}"):
            assert find_end(StateType.RUNNING, pid) == StateType.CRASHED
            assert find_end(StateType.CANCELLING, pid) == StateType.CANCELLED


def test_run_whose_process_may_be_there_is_left_alone(monkeypatch):
    monkeypatch.setattr(deployments, "GONE_SECONDS", 0.2)  # the process of this test does not end
    assert find_end(StateType.RUNNING, str(os.getpid())) is None
    assert find_end(StateType.RUNNING, None) is None


def test_run_that_was_taken_and_not_started_is_scheduled_again():
    assert find_end(StateType.PENDING, None) == StateType.SCHEDULED
