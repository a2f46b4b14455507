"""Services that do not answer are given up in time, in one line that names them."""

import threading
import time

import pytest

from keras_bert_flow.stores import store as store_module
from keras_bert_flow.stores.store import NoAnswerError, answer_within
from tests.patience import PATIENCE_SECONDS
from tests.silent_server import silent_server

pytestmark = pytest.mark.any_backend

SECONDS = 0.5  # in place of 20


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """Wait for less long than a user does."""
    monkeypatch.setattr(store_module, "ANSWER_SECONDS", SECONDS)


def give_up(ask, *words: str) -> None:
    started_at = time.monotonic()
    with pytest.raises((NoAnswerError, ValueError)) as caught:
        ask()
    assert time.monotonic() - started_at < 60  # on a busy machine; the servers answer for hours
    assert "\n" not in str(caught.value) and "SECRET" not in str(caught.value)
    for word in ("must answer within", *words):
        assert word in str(caught.value)


def test_answers_and_errors_are_passed_on():
    assert answer_within(lambda: 7, "A server", "x", "Check it") == 7
    with pytest.raises(KeyError, match="'a'"):
        answer_within(lambda: {}["a"], "A server", "x", "Check it")


def test_time_that_an_earlier_question_took_is_counted():
    started_at = time.monotonic()
    with pytest.raises(NoAnswerError, match="within 20 s"):
        answer_within(lambda: time.sleep(60), "A server", "x", "Check it", 20.0, spent_seconds=30.0)
    assert time.monotonic() - started_at < 15


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "dripping"])
@pytest.mark.parametrize("scheme", ["s3", "gs", "hdfs"])
def test_store_is_given_up(monkeypatch, scheme, drips):
    pytest.importorskip({"s3": "s3fs", "gs": "gcsfs", "hdfs": "requests"}[scheme])
    from keras_bert_flow.stores import store
    from keras_bert_flow.stores.publishing import check_writable

    monkeypatch.setattr(store, "_answered", set())
    with silent_server(drips) as address:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{address}",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "STORAGE_EMULATOR_HOST": f"http://{address}",
        }.items():
            monkeypatch.setenv(name, value)
        place = f"hdfs://{address}/x" if scheme == "hdfs" else f"{scheme}://bucket/x"
        give_up(lambda: check_writable(place), place)


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "dripping"])
def test_beam_store_is_given_up(monkeypatch, drips):
    pytest.importorskip("boto3", reason="Beam's filesystem for s3:// needs it")
    from apache_beam.utils.retry import Clock

    from beam_jobs import storage

    def end_thread(clock, seconds):
        raise SystemExit

    # Beam asks again for minutes, in the thread that was given up. What it logs meanwhile belongs to no test.
    monkeypatch.setattr(Clock, "sleep", end_thread)
    monkeypatch.setattr(storage, "_answered", set())
    before = set(threading.enumerate())
    with silent_server(drips) as address:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://{address}",
            "AWS_ACCESS_KEY_ID": "a",
            "AWS_SECRET_ACCESS_KEY": "b",
            "AWS_DEFAULT_REGION": "eu-west-1",
        }.items():
            monkeypatch.setenv(name, value)
        give_up(lambda: storage.check_reachable("s3://bucket/x"), "s3://bucket/x")
    for thread in set(threading.enumerate()) - before:
        thread.join(PATIENCE_SECONDS)
        assert not thread.is_alive()


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "dripping"])
def test_hub_is_given_up(monkeypatch, tmp_path, drips):
    pytest.importorskip("huggingface_hub")
    from huggingface_hub import HfApi, constants

    from keras_bert_flow.stores.hub import ask_hub, fetch_from_hub

    with silent_server(drips) as address:
        monkeypatch.setattr(constants, "ENDPOINT", f"http://u:SECRET@{address}")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        api = HfApi(endpoint=f"http://{address}", token="a")
        give_up(lambda: ask_hub(lambda: api.create_repo("org/name"), "org/name"), f"org/name at http://***@{address}")
        with pytest.raises(FileNotFoundError, match="the Hub did not answer"):
            fetch_from_hub("hf://org/name")


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "dripping"])
def test_prefect_server_is_given_up(monkeypatch, drips):
    pytest.importorskip("prefect")
    from flows.server import check_chosen_server

    with silent_server(drips) as address:
        monkeypatch.setenv("PREFECT_API_URL", f"http://u:SECRET@{address}/api")
        give_up(lambda: check_chosen_server(f"http://u:SECRET@{address}/api"), f"http://***@{address}/api")
