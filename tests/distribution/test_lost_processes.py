"""A process of a run that is killed, never comes or comes twice: one line in the others, and a status of its own."""

import logging
import multiprocessing
import socket

import keras
import pytest

from keras_bert_flow.console.interrupts import PROCESS_LOST
from keras_bert_flow.distribution.cluster import Cluster
from keras_bert_flow.results.stages.keys import Stage
from keras_bert_flow.training import processes
from keras_bert_flow.training.processes import LostProcess, join_cluster, published_together
from tests.distribution.child import SHAPE
from tests.distribution.meeting import WIDTH, attend
from tests.distribution.processes import name_processes, start_children
from tests.distribution.test_same_steps import SETTINGS
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.patience import PATIENCE_SECONDS, wait_until

BACKEND = keras.backend.backend()
STEPS = {"total_steps": 100_000, "checkpoint_every_steps": 3}
LOST = "kbf: Another of the 2 processes of this run ended or cannot be reached."


@pytest.fixture
def meeting(monkeypatch):
    """Set the environment of the first of two processes; return its port."""
    (first, _) = name_processes(BACKEND, 2)
    for name, value in first.items():
        monkeypatch.setenv(name, value)
    return int(first.get("MASTER_PORT", "0"))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_survivors_of_a_kill_end_with_one_line(tmp_path, victim):
    records = write_tiny_records(tmp_path / "records", train=(160,))
    told = {"records": str(records), "output": str(tmp_path / "out"), "settings": SETTINGS | STEPS}
    places = {"stop_at": 6, "signal": "SIGKILL", "victim": victim}
    (status,) = start_children(BACKEND, tmp_path / "seen", processes=2, lost=(victim,), **told, **places)
    printed = (tmp_path / "seen" / f"{1 - victim}.log").read_text()
    assert status == PROCESS_LOST, printed
    assert [line[: len(LOST)] for line in printed.splitlines() if line.startswith("kbf: ")] == [LOST]
    assert "Traceback" not in printed and "*** " not in printed  # nor the stack of an abort
    assert list(tmp_path.glob(".out.work/checkpoints/step-*"))


@pytest.mark.skipif(BACKEND != "torch", reason="jax and TensorFlow hold the address in this process from then on")
def test_address_in_use_is_told(meeting):
    rule = rf"must be able to listen .* Received: 127.0.0.1:{meeting}, which is in use"
    with socket.create_server(("127.0.0.1", meeting)), pytest.raises(ValueError, match=rule):
        join_cluster(make_tiny_config(SHAPE, **SETTINGS), 100)


@pytest.mark.skipif(BACKEND != "torch", reason="the wait of jax and TensorFlow has a bound of their own")
def test_process_that_waits_says_for_whom(meeting, monkeypatch, caplog):
    monkeypatch.setattr(processes, "TELL_SECONDS", 0.1)
    monkeypatch.setattr("keras_bert_flow.distribution.torch_cluster.JOIN_SECONDS", 2)
    with caplog.at_level(logging.WARNING), pytest.raises(LostProcess, match="must meet within"):
        join_cluster(make_tiny_config(SHAPE, **SETTINGS), 100)
    wait_until(lambda: caplog.messages)
    place = f"2 processes at 127.0.0.1:{meeting}, of which this is number 0"
    assert caplog.messages == [f"Waiting for the other processes: {place}. Start them all."]


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        ((1, "killed"), {(0, "process 1 is gone")}),
        ((0, "killed"), {(1, "process 0 is gone"), (2, "process 0 is gone")}),
        ((2, "failed"), {(0, "process 2 failed")}),
        ((2, "done"), set()),
    ],
)
@pytest.mark.first_form
def test_end_of_a_process_is_seen_by_those_connected_to_it(ends, expected):
    context = multiprocessing.get_context("spawn")
    barrier, shared, told = context.Barrier(3), context.Array("d", 3 * WIDTH), context.Manager().Queue()
    there = [context.Process(target=attend, args=(rank, barrier, shared, told, ends)) for rank in range(3)]
    for process in there:
        process.start()
    for process in there:
        process.join(PATIENCE_SECONDS)
    assert {told.get() for _ in range(told.qsize())} == expected


STAGE = Stage("pretraining", "pretrain", made_by="tests", revision=1)


class Recorded(Cluster):
    """One of two processes, whose other one answers the question whether the work begins."""

    processes = 2

    def __init__(self, rank, answer=False):
        self.rank, self.told, self._answer = rank, [], answer

    def is_any(self, condition):
        self.told.append(condition)
        return self._answer if self.rank else condition


def find_key(config):
    return "key"


@pytest.mark.any_backend
def test_other_errors_stay_what_they_are(tmp_path):
    output = tmp_path / "out"
    with (
        pytest.raises(RuntimeError, match="^of its own$"),
        published_together(Cluster(), output, STAGE, find_key),
    ):
        raise RuntimeError("of its own")
    assert not output.exists()


@pytest.mark.any_backend
def test_first_process_says_whether_the_work_begins(tmp_path):
    output, first = tmp_path / "out", Recorded(0)
    with published_together(first, output, STAGE, find_key) as work:
        (work.folder / "a.txt").write_text("a")
        assert work.log_folder == work.folder and first.told == [True]
    assert first.told == [True, False]  # and waits for the others
    assert (output / "a.txt").is_file()
    again = Recorded(0)
    with published_together(again, output, STAGE, find_key) as work:
        assert work is None and again.told == [False]
    refused = Recorded(0)
    with pytest.raises(FileExistsError), published_together(refused, output, STAGE, lambda config: "another"):
        raise AssertionError
    assert refused.told == [False]  # the others do not wait for it
    assert not list(tmp_path.glob(".out.work*"))


@pytest.mark.any_backend
@pytest.mark.parametrize("begins", [False, True])
def test_other_process_works_only_if_the_first_does(tmp_path, begins):
    with published_together(Recorded(1, begins), tmp_path / "out", STAGE, find_key) as work:
        assert (work is not None) == begins
        if work is not None:
            assert work.log_folder.is_dir() and work.log_folder != work.folder
            (work.log_folder / "log.jsonl").write_text("")
    assert not list(tmp_path.iterdir())  # the first process publishes
    assert work is None or not work.log_folder.exists()
