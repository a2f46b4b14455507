"""Tell runs that wait for a place in a work pool which runs they wait for, in the log on the page of each."""

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import LogCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterNextScheduledStartTime,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort

from flows.dead_runs import read_under_way
from flows.logs import RUN_LOGGERS
from keras_bert_flow.terminal import escape_controls

LOOK_EVERY_SECONDS = 5.0
MOST_NAMED = 3  # of the runs that are queued before


class Queue:
    """Runs of a work pool that are due and have no place.

    Args:
        places: maximum number of concurrent runs.
        url: of the UI, whose pages are linked.
    """

    def __init__(self, client: SyncPrefectClient, pool: str, places: int, url: str):
        self._client, self._pool, self._places, self._url = client, pool, places, url
        self._told: dict[UUID, str] = {}
        self._looked_at = -LOOK_EVERY_SECONDS

    def tell(self) -> None:
        """Write a line into the log of each run that waits, if it is not its last one; nothing if no server answers."""
        if time.monotonic() - self._looked_at < LOOK_EVERY_SECONDS:
            return
        self._looked_at = time.monotonic()
        with suppress(httpx.HTTPError):
            running = read_under_way(self._client, self._pool)
            waiting = self._read_due() if len(running) >= self._places else []
            lines = {run.id: self._describe(running, waiting[:place]) for place, run in enumerate(waiting)}
            new = [self._log(run, line) for run, line in lines.items() if self._told.get(run) != line]
            if new:
                self._client.create_logs(new)
            self._told = lines

    def _read_due(self) -> list[FlowRun]:
        due = FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
            next_scheduled_start_time=FlowRunFilterNextScheduledStartTime(before_=datetime.now(UTC)),
        )
        of_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[self._pool]))
        return self._client.read_flow_runs(
            flow_run_filter=due, work_pool_filter=of_pool, sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC
        )

    def _describe(self, running: Sequence[FlowRun], before: Sequence[FlowRun]) -> str:
        links = ", ".join(sorted(f"`{run.name}` ({self._url}/runs/flow-run/{run.id})" for run in running))
        line = f"Waiting for a place: `kbf serve` executes {self._places} at a time, now {links}."
        if before:
            more = f" and {len(before) - MOST_NAMED} more" if len(before) > MOST_NAMED else ""
            line += f" Queued before this run: {', '.join(f'`{run.name}`' for run in before[:MOST_NAMED])}{more}."
        return escape_controls(line)

    def _log(self, run: UUID, line: str) -> LogCreate:
        return LogCreate(
            name=RUN_LOGGERS[0], level=logging.INFO, message=line, timestamp=datetime.now(UTC), flow_run_id=run
        )
