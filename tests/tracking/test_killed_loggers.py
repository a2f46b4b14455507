"""A logger that ends by itself: its training says so at once, and what is missing is sent at the end."""

import json
import signal
import sys
from pathlib import Path

import pytest

from keras_bert_flow.console.interrupts import REPORTED
from keras_bert_flow.training.loop import logs as tracking
from keras_bert_flow.training.loop.logs import Interrupted, Tracker
from tests.patience import wait_until
from tests.tracking.mlflow_files import find_runs, read_history

pytestmark = pytest.mark.any_backend

# A logger in the place of `keras_bert_flow.tracking`: it notes that it started, and ends as it is told on its first
# start and well on its second.
STAND_IN = """
import os, pathlib, signal, sys, json
facts = json.loads(sys.stdin.readline())
folder = pathlib.Path(facts["state"])
count = len([*folder.glob("start-*")])
(folder / f"start-{count}").write_text("")
if count < int(sys.argv[2]):
    if sys.argv[1] == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(sys.argv[1]))
end = json.loads(sys.stdin.readline())
(folder / "end").write_text(end["status"])
"""


def track(place: Path) -> Tracker:
    return Tracker(("mlflow",), place, place / "checkpoints", "bert/pretraining", "pretraining", "abc", {"seed": 1})


def run(place: Path, monkeypatch, how: str, times: int, error: type[BaseException] | None = None) -> None:
    monkeypatch.setattr(tracking, "COMMAND", (sys.executable, "-c", STAND_IN, how, str(times)))
    with track(place) as tracker:
        tracker.start()
        wait_until(lambda: tracker._processes["mlflow"].poll() is not None)
        tracker.metrics = {"score": 1}
        if error:
            raise error


@pytest.mark.parametrize(("how", "words"), [("killed", "was killed by SIGKILL"), ("1", "ended with status 1")])
def test_logger_that_ends_is_said_and_started_again(tmp_path, monkeypatch, capfd, how, words):
    run(tmp_path, monkeypatch, how, times=1)
    first, last = capfd.readouterr().err.splitlines()
    assert first.startswith(f"The `mlflow` logger of bert/pretraining {words} and sends nothing until the end")
    assert "log.jsonl has every number" in first
    assert last == "The `mlflow` logger of bert/pretraining was started again and has sent everything."
    assert (tmp_path / "checkpoints" / "end").read_text() == "finished"


def test_logger_that_ends_again_is_said_again(tmp_path, monkeypatch, capfd):
    run(tmp_path, monkeypatch, "killed", times=9)
    _, last = capfd.readouterr().err.splitlines()
    assert "was killed by SIGKILL, so the last lines are missing" in last


def test_run_that_is_stopped_starts_no_logger_again(tmp_path, monkeypatch, capfd):
    with pytest.raises(Interrupted):
        run(tmp_path, monkeypatch, "killed", times=1, error=Interrupted)
    assert len(capfd.readouterr().err.splitlines()) == 2
    assert len([*tmp_path.glob("checkpoints/start-*")]) == 1


def test_logger_that_has_said_why_is_not_said_again(tmp_path, monkeypatch, capfd):
    run(tmp_path, monkeypatch, str(REPORTED), times=9)
    assert capfd.readouterr().err == ""


@pytest.mark.slow
def test_killed_mlflow_logger_loses_no_step(place, capfd):
    lines = [{"step": step, "loss": step / 2, "elapsed_seconds": step / 10} for step in (3, 6, 7)]
    (place / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:1]))
    with track(place) as tracker:
        tracker.start()
        wait_until(lambda: any(place.glob("store/*/*/metrics/elapsed_seconds")))
        tracker._processes["mlflow"].send_signal(signal.SIGKILL)
        (place / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        tracker._processes["mlflow"].wait()
        tracker.metrics = {"score": 1}
    client, (found,) = find_runs(place)
    assert read_history(client, found) == [(3, 1.5), (6, 3.0), (7, 3.5)] and found.info.status == "FINISHED"
    assert "was killed by SIGKILL" in capfd.readouterr().err
