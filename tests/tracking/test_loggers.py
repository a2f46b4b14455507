"""The real MLflow and Weights & Biases, on this disk and on servers that are down or silent, in their processes."""

import json
import socket
import time

import pytest

from keras_bert_flow.training.loop.logs import Interrupted, Tracker
from tests.patience import wait_until
from tests.tracking.mlflow_files import find_runs, read_history
from tests.tracking.wandb_files import read_offline_runs

pytestmark = [pytest.mark.slow, pytest.mark.any_backend]

PARAMETERS = {"seed": 1, "pretraining": {"learning_rate": 1e-4, "betas": [0.9, 0.999]}, "name": "x"}


def write_log(place, *steps):
    lines = [{"step": step, "loss": step / 2, "elapsed_seconds": step / 10} for step in steps]
    (place / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def track(place, *loggers, parameters=PARAMETERS):
    return Tracker(loggers, place, place / "checkpoints", "bert/pretraining", "pretraining", "abc", parameters)


def is_logged(place, logger):
    return any(place.glob({"mlflow": "store/*/*/metrics/elapsed_seconds", "wandb": "checkpoints/wandb-step"}[logger]))


def stop(place, *loggers):
    with pytest.raises(Interrupted), track(place, *loggers) as tracker:
        tracker.start()
        wait_until(lambda: all(is_logged(place, name) for name in loggers))
        raise Interrupted


def test_run_that_goes_on_is_one_run_with_every_step_once(place):
    write_log(place, 3, 6, 7)
    stop(place, "mlflow", "wandb")
    write_log(place, 3, 6, 7, 8)  # as after a kill, with a line more
    with track(place, "mlflow", "wandb", parameters=PARAMETERS | {"seed": 2}) as tracker:
        tracker.start()
        tracker.metrics = {"score": 0.75, "published_step": 8, "chosen": "last"}

    client, (run,) = find_runs(place)
    assert read_history(client, run) == [(3, 1.5), (6, 3.0), (7, 3.5), (8, 4.0)]
    assert run.info.status == "FINISHED" and run.info.run_name == "bert/pretraining"
    assert run.data.params == {
        "seed": "1",
        "name": "x",
        "pretraining.learning_rate": "0.0001",
        "pretraining.betas": "[0.9, 0.999]",
    }
    assert run.data.tags["stage"] == "pretraining" and run.data.tags["content_key"] == "abc"
    assert run.data.tags["changed.seed"] == "2"
    final = {name: value for name, value in run.data.metrics.items() if name.startswith("final_")}
    assert final == {"final_score": 0.75, "final_published_step": 8.0}

    first, second = read_offline_runs(place)
    assert first["id"] == second["id"] == run.data.tags["keras_bert_flow.run"]
    assert [step for step, _ in first["history"]] == [3, 6, 7] and first["exit_code"] == 1
    assert second["history"] == [(8, {"loss": 4.0, "elapsed_seconds": 0.8})] and second["exit_code"] == 0
    assert first["config"]["pretraining.betas"] == [0.9, 0.999] and second["config"]["seed"] == 2
    assert second["summary"]["final_score"] == 0.75 and second["group"] == "abc"


def test_failed_run_is_marked(place):
    write_log(place, 3)
    with pytest.raises(ZeroDivisionError), track(place, "mlflow") as tracker:
        tracker.start()
        wait_until(lambda: is_logged(place, "mlflow"))
        raise ZeroDivisionError
    _, (run,) = find_runs(place)
    assert run.info.status == "FAILED"


@pytest.mark.parametrize("is_silent", [False, True], ids=["down", "silent"])
@pytest.mark.parametrize("logger", ["mlflow", "wandb"])
def test_server_that_does_not_answer_is_one_warning(place, monkeypatch, capfd, logger, is_silent):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        if is_silent:
            server.listen(64)  # connections are made, and nobody reads
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address.replace("127", "me:SECRET@127"))
        monkeypatch.setenv("WANDB_MODE", "online")
        monkeypatch.setenv("WANDB_BASE_URL", address)
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        write_log(place, 3)
        started_at = time.monotonic()
        with track(place, logger) as tracker:
            tracker.start()
            begun_after = time.monotonic() - started_at
            tracker.metrics = {"score": 1}
        ended_after = time.monotonic() - started_at
    assert begun_after < 2 and ended_after < 80  # the import of its package, on a busy machine, and 30 s
    title = {"mlflow": "MLflow", "wandb": "Weights & Biases"}[logger]
    (warning,) = capfd.readouterr().err.splitlines()
    assert warning.startswith(f"{title} must be reached for its log of bert/pretraining. Received: ")
    assert "SECRET" not in warning
    assert warning.endswith("The training goes on; log.jsonl has every number.")
