"""What the page of a run says that waits for a place in the work pool, on a real server."""

import logging
from collections.abc import Iterator
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId
from prefect.states import Completed, Pending, Running

from flows import deployments
from flows.deployments import Queue
from flows.pipeline import bert_pipeline

POOL, URL = "queued", "http://127.0.0.1:4200"


@pytest.fixture
def client(prefect_server) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as client:
        yield client


def lines_of(client: SyncPrefectClient, run: UUID) -> list[str]:
    logs = client.read_logs(LogFilter(flow_run_id=LogFilterFlowRunId(any_=[run])))
    assert {log.level for log in logs} <= {logging.INFO}
    return [log.message for log in logs]


@pytest.mark.slow
def test_waiting_run_names_the_runs_that_it_waits_for(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(deployments, "LOOK_EVERY_SECONDS", 0.0)
    client.create_work_pool(WorkPoolCreate(name=POOL, type="process", concurrency_limit=2))
    flow = client.create_flow_from_name(bert_pipeline.name)
    deployment = client.create_deployment(
        flow, "queued", entrypoint="flows.pipeline.bert_pipeline", work_pool_name=POOL
    )
    names = ("one", "two\x1b[2J", "three", "four")
    one, two, three, four = (client.create_flow_run_from_deployment(deployment, name=name).id for name in names)
    queue = Queue(client, POOL, 2, URL)
    client.set_flow_run_state(one, Pending(), force=True)
    queue.tell()  # a place is free
    assert [lines_of(client, run) for run in (one, two, three, four)] == [[]] * 4
    client.set_flow_run_state(two, Running(), force=True)
    for _ in range(2):
        queue.tell()  # once, however often it looks
    links = f"`one` ({URL}/runs/flow-run/{one}), `two\\x1b[2J` ({URL}/runs/flow-run/{two})"
    line = f"Waiting for a place: `kbf serve` executes 2 at a time, now {links}."
    assert lines_of(client, three) == [line]
    assert lines_of(client, four) == [f"{line} Queued before this run: `three`."]
    assert lines_of(client, one) == lines_of(client, two) == []
    client.set_flow_run_state(one, Completed(), force=True)
    client.set_flow_run_state(three, Running(), force=True)
    queue.tell()
    assert len(lines_of(client, three)) == 1
    assert "`three` (" in lines_of(client, four)[1] and "Queued before" not in lines_of(client, four)[1]
