"""Runs that wait for a place in a work pool say for whom; runs whose processes were killed are marked."""

import logging
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
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
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification
from prefect.states import Cancelled, Crashed, Scheduled

from flows.server import RUN_LOGGERS
from keras_bert_flow.console.terminal import escape_controls

# Mark runs whose processes were killed as crashed, with the cause and what to do, rather than running.

DEAD_RUNS = "keras-bert-flow: end dead runs"
# Three of Prefect's heartbeat intervals of 180 s. Half of that ended runs that were alive (prefect#16459, #18653).
DEAD_AFTER = timedelta(seconds=540)
REMEDY = (
    "its process was killed, or its machine stopped. Run it again with the same parameters: finished stages are kept, "
    "and training goes on from its checkpoint."
)
SILENT, KILLED = "No sign of life for {seconds:.0f} s: " + REMEDY, "No longer there: " + REMEDY
LIVING, ENDED = "prefect.flow-run.heartbeat", ("Completed", "Failed", "Cancelled", "Crashed")
GONE_SECONDS, POLL_SECONDS = 5.0, 0.1
UNDER_WAY = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)


def end_silent_runs(client: SyncPrefectClient) -> None:
    """Make the server mark runs without heartbeats as crashed, on whichever machine they ran."""
    if client.read_automations_by_name(DEAD_RUNS):
        return
    trigger = EventTrigger(
        match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
        for_each={"prefect.resource.id"},
        after={LIVING},
        expect={LIVING, *(f"prefect.flow-run.{state}" for state in ENDED)},
        posture=Posture.Proactive,
        threshold=1,
        within=DEAD_AFTER,
    )
    message = SILENT.format(seconds=DEAD_AFTER.total_seconds())
    action = ChangeFlowRunState(state=StateType.CRASHED, message=message)
    client.create_automation(AutomationCore(name=DEAD_RUNS, trigger=trigger, actions=[action]))


def end_killed_runs(client: SyncPrefectClient, pool: str, on_line: Callable[[str], None]) -> None:
    """End the runs of a work pool that a killed worker of this machine left behind, so that new runs need not wait.

    Call this while no worker runs, for a server that only this machine reaches, so that all runs' processes are on this
    machine. A run whose process id exists is left to `end_silent_runs`, since the id may belong to another process. So
    are all runs if the server does not answer.
    """
    with suppress(httpx.HTTPError):
        for run in read_under_way(client, pool):
            if (state := _find_end(run)) is not None:
                client.set_flow_run_state(run.id, state, force=True)
                on_line(f"The run {run.name} was left behind by a worker that was killed; it is {state.name} now.")


def read_under_way(client: SyncPrefectClient, pool: str) -> list[FlowRun]:
    """Return the runs of a work pool that have one of its places."""
    chosen = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[*UNDER_WAY])))
    of_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[pool]))
    return client.read_flow_runs(flow_run_filter=chosen, work_pool_filter=of_pool)


def _find_end(run: FlowRun) -> State | None:
    """Return the final state of a run that no worker follows, or None if its process may still exist."""
    number = (run.infrastructure_pid or "").rpartition(":")[2]
    if not number:
        return Scheduled() if run.state_type == StateType.PENDING else None  # picked up by the worker, but not started
    if _outlives(int(number), GONE_SECONDS):
        return None
    return Cancelled() if run.state_type == StateType.CANCELLING else Crashed(message=KILLED)


def _outlives(number: int, seconds: float) -> bool:
    """Return whether a process still exists after `seconds`: a killed process first frees its memory."""
    deadline = time.monotonic() + seconds
    while _lives(number):
        if time.monotonic() > deadline:
            return True
        time.sleep(POLL_SECONDS)
    return False


def _lives(number: int) -> bool:
    try:
        os.kill(number, 0)
        # "Z" is a zombie: a dead process that nobody waits for, as in a container without an init (man 5 proc).
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:  # another user's process, or no /proc on this system
        return True


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
