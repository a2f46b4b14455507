"""Register deployments on a Prefect server, look after the runs of their work pool, and run a matrix as one flow.

`deploy` creates a work pool, a deployment for each flow and configuration, and an automation that ends dead runs. Runs
that wait for a place in the pool say for whom; runs whose processes were killed are marked.
"""

import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import httpx
from prefect import Flow, flow, get_client, task
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import LogCreate, WorkPoolCreate, WorkPoolUpdate
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
from prefect.exceptions import ObjectNotFound
from prefect.futures import PrefectFuture, as_completed
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelled, Crashed, Scheduled

from flows.child import stop_children
from flows.form import describe_form, name_run
from flows.local import FLOW_GRACE_SECONDS, QUIET, run_flow
from flows.own_server import POOL_TEMPLATE, WORKING_DIRECTORY
from flows.parameters import DEFAULT_CONFIG, make_paths_absolute, resolve_config
from flows.pipeline import IS_CHECKED, bert_pipeline, evaluate, finetune, preprocess, pretrain
from flows.plan import holding_plan
from flows.server import RUN_LOGGERS
from flows.stages import StageError
from keras_bert_flow.checks.run import check_run
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.machine import share_cores
from keras_bert_flow.config.pipeline import Cell, list_cells
from keras_bert_flow.console.terminal import as_markdown, escape_controls
from keras_bert_flow.evaluation.tables import RUNS_NOTE, tabulate_runs
from keras_bert_flow.files.paths import find_address, name_path
from keras_bert_flow.results.artifacts import write_atomically
from keras_bert_flow.stores.fetching import fetch

# Run many variants of one configuration as one flow: each as a flow run of its own, with one table at the end.
#
# Results are content-addressed: the first run that needs a shared result, such as the records, makes it.

TABLE = "matrix.md"  # in the folder of results


@flow(name="bert-matrix", flow_run_name=name_run)
def bert_matrix(config_path: str = DEFAULT_CONFIG, overrides: tuple[str, ...] = ()) -> str:
    """Run every combination of the section `matrix`, and compare the results.

    Args:
        config_path: File of settings with the section `matrix`, relative to the working directory.
        overrides: `key=value`, such as finetuning.epochs=1.
    Returns:
        The path of the table.
    """
    log = get_run_logger()
    config = make_paths_absolute(load_config(config_path, overrides))
    if config.matrix is None:
        raise ValueError(f"The configuration must have the section `matrix`. Received: {config_path}. Use kbf run.")
    cells = list_cells(config.matrix)
    resolved = [resolve_config(config_path, (*overrides, *cell.overrides)) for cell in cells]
    with holding_plan(*resolved):
        if not IS_CHECKED.get():
            for one in resolved:
                check_run(one)
        log.info("matrix: %s runs, %s at a time", len(cells), config.matrix.at_once)
        made, failed = _run_all(cells, config_path, tuple(overrides), config.matrix.at_once)
        folders = {label: fetch(page.parent) for label, page in made.items()}
        text = f"{as_markdown(tabulate_runs(folders))}\n\n{RUNS_NOTE}" if folders else ""
    text += "".join(f"\n\n{label}: failed. {why}" for label, why in failed.items())
    create_markdown_artifact(text, key="matrix", description=f"{len(made)} of {len(cells)} runs")
    place = (Path.cwd() if find_address(config.runs) else Path(config.runs)) / TABLE
    write_atomically(place, f"{text}\n".encode())
    if failed:
        first = next(iter(failed))
        raise StageError(
            f"Every run of a matrix must succeed. Received: {len(failed)} of {len(cells)} failed, the first "
            f"{first}: {failed[first]} The others are in {place}. Run again to go on."
        )
    return str(place)


@task(name="run-cell", task_run_name="{label}")
def run_cell(label: str, config_path: str, overrides: tuple[str, ...], threads: dict[str, str]) -> str:
    """Run the pipeline with the settings of one cell, in a separate process with these numbers of threads."""
    log = get_run_logger()
    parameters = {"config_path": config_path, "overrides": list(overrides)}
    environment = QUIET | threads | {"PREFECT_API_URL": PREFECT_API_URL.value()}
    return name_path(run_flow(parameters, environment, lambda line: log.info("%s: %s", label, line)))


def _run_all(
    cells: list[Cell], config_path: str, overrides: tuple[str, ...], at_once: int
) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the report of each successful run, and the reason of each failure, by label."""
    threads = share_cores(min(at_once, len(cells)))
    waiting, running = deque(cells), dict[PrefectFuture, str]()
    made, failed = dict[str, Path](), dict[str, str]()
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                cell = waiting.popleft()
                given = (*overrides, *cell.overrides)
                running[run_cell.submit(cell.label, config_path, given, threads)] = cell.label
            future = next(as_completed([*running]))
            label = running.pop(future)
            found = future.result(raise_on_failure=False)
            if isinstance(found, BaseException):
                failed[label] = " ".join(str(found).split())
            else:
                made[label] = Path(found)
    except BaseException:  # on cancellation: threads wait for their children, and the process for its threads
        stop_children(FLOW_GRACE_SECONDS)
        raise
    return {cell.label: made[cell.label] for cell in cells if cell.label in made}, failed


# Flow → the object that a worker imports
FLOWS: dict[Flow, str] = {
    bert_pipeline: "flows.pipeline.bert_pipeline",
    bert_matrix: "flows.deployments.bert_matrix",
    preprocess: "flows.pipeline.preprocess",
    pretrain: "flows.pipeline.pretrain",
    finetune: "flows.pipeline.finetune",
    evaluate: "flows.pipeline.evaluate",
}


def deploy(configs: Sequence[str], pool: str, folder: Path, parallel: int = 1) -> list[str]:
    """Register a work pool and deployments, updating existing ones.

    Args:
        configs: configuration files; a deployment has the name of its file, without the suffix. A configuration with
            the section `matrix` gets only the flow `bert-matrix`.
        pool: name of the work pool, of the type `process`, whose command is fixed.
        folder: working directory of the runs, so that relative paths mean the same there as here.
        parallel: maximum number of concurrent runs; the default of 1 is for a single device, since each run trains.
    Returns:
        The names of the deployments, `flow/configuration`.
    Raises:
        FileNotFoundError, ValueError: as for `load_config`, or two files have the same name; nothing is registered.
    """
    forms = list(_describe_forms(configs))
    with get_client(sync_client=True) as client:
        _resolve_pool(client, pool, parallel)
        for flow, entrypoint, name, description, (values, schema) in forms:
            client.create_deployment(
                client.create_flow_from_name(flow.name),
                name,
                entrypoint=entrypoint,
                description=description,
                work_pool_name=pool,
                parameters=values,
                parameter_openapi_schema=schema,
                enforce_parameter_schema=True,
                pull_steps=[{WORKING_DIRECTORY: {"directory": str(folder)}}],
                job_variables={},  # replaces those of an earlier release: the pool fixes the command
                tags=["keras-bert-flow"],
            )
        end_silent_runs(client)
    return [f"{flow.name}/{name}" for flow, _, name, _, _ in forms]


def _describe_forms(configs: Sequence[str]) -> Iterator[tuple]:
    names: dict[str, str] = {}
    for path in configs:
        name = Path(path).stem
        if name in names:
            raise ValueError(
                f"Configurations must have different names, as deployments have theirs. Received: {names[name]} and "
                f"{path}. Rename one."
            )
        names[name] = path
        config = load_config(path)
        for chosen, entrypoint in FLOWS.items():
            if (chosen is bert_matrix) == (config.matrix is not None):
                description = f"{chosen.description}\n\n{config.name}"
                yield chosen, entrypoint, name, description, describe_form(chosen, config, path)


def _resolve_pool(client: SyncPrefectClient, name: str, parallel: int) -> None:
    try:
        found = client.read_work_pool(name)
    except ObjectNotFound:
        client.create_work_pool(
            WorkPoolCreate(name=name, type="process", concurrency_limit=parallel, base_job_template=POOL_TEMPLATE)
        )
        return
    if found.type != "process":
        raise ValueError(
            f"The work pool must be of the type process. Received: {name}, {found.type}. Delete it: "
            f"prefect work-pool delete {name}"
        )
    client.update_work_pool(name, WorkPoolUpdate(concurrency_limit=parallel, base_job_template=POOL_TEMPLATE))


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
    deadline = time.monotonic() + GONE_SECONDS  # a killed process first frees its memory
    while _lives(int(number)):
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_SECONDS)
    return Cancelled() if run.state_type == StateType.CANCELLING else Crashed(message=KILLED)


def _lives(number: int) -> bool:
    try:
        os.kill(number, 0)
        # "Z" is a zombie: a dead process that nobody waits for, as in a container without an init (man 5 proc).
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except OSError:  # another user's process, or no /proc on this system
        return True


# Tell each run that is due and has no place in the work pool for whom it waits.

LOOK_EVERY_SECONDS = 5.0
MOST_NAMED = 3  # of the runs that are queued before


@dataclass
class Queue:
    """Runs of a work pool that are due and have no place.

    Args:
        places: maximum number of concurrent runs.
        url: of the UI, whose pages are linked.
    """

    client: SyncPrefectClient
    pool: str
    places: int
    url: str
    _told: dict[UUID, str] = field(init=False, default_factory=dict)
    _looked_at: float = field(init=False, default=-LOOK_EVERY_SECONDS)

    def tell(self) -> None:
        """Write a line into the log of each run that waits, if it is not its last one; nothing if no server answers."""
        if time.monotonic() - self._looked_at < LOOK_EVERY_SECONDS:
            return
        self._looked_at = time.monotonic()
        with suppress(httpx.HTTPError):
            running = read_under_way(self.client, self.pool)
            waiting = self._read_due() if len(running) >= self.places else []
            links = ", ".join(sorted(f"`{run.name}` ({self.url}/runs/flow-run/{run.id})" for run in running))
            lines = {}
            for place, run in enumerate(waiting):
                line = f"Waiting for a place: `kbf serve` executes {self.places} at a time, now {links}."
                if place:
                    more = f" and {place - MOST_NAMED} more" if place > MOST_NAMED else ""
                    names = ", ".join(f"`{before.name}`" for before in waiting[: min(place, MOST_NAMED)])
                    line += f" Queued before this run: {names}{more}."
                lines[run.id] = escape_controls(line)
            new = [
                LogCreate(
                    name=RUN_LOGGERS[0], level=logging.INFO, message=line, timestamp=datetime.now(UTC), flow_run_id=run
                )
                for run, line in lines.items()
                if self._told.get(run) != line
            ]
            if new:
                self.client.create_logs(new)
            self._told = lines

    def _read_due(self) -> list[FlowRun]:
        due = FlowRunFilter(
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
            next_scheduled_start_time=FlowRunFilterNextScheduledStartTime(before_=datetime.now(UTC)),
        )
        of_pool = WorkPoolFilter(name=WorkPoolFilterName(any_=[self.pool]))
        return self.client.read_flow_runs(
            flow_run_filter=due, work_pool_filter=of_pool, sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC
        )
