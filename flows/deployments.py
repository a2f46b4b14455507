"""Register deployments on a Prefect server, and run the matrix of a configuration as one flow.

This creates a work pool, a deployment for each flow and configuration, and an automation that ends dead runs.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from prefect import Flow, flow, get_client, task
from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.exceptions import ObjectNotFound
from prefect.futures import PrefectFuture, as_completed
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_API_URL

from flows.child import stop_children
from flows.form import describe_form, name_run
from flows.local import FLOW_GRACE_SECONDS, QUIET, run_flow
from flows.own_server import POOL_TEMPLATE, WORKING_DIRECTORY
from flows.pipeline import IS_CHECKED, bert_pipeline, evaluate, finetune, preprocess, pretrain
from flows.plan import holding_plan
from flows.settling import DEFAULT_CONFIG, make_paths_absolute, settle_config
from flows.stages import StageError
from flows.waiting import end_silent_runs
from keras_bert_flow.checks.run import check_run
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.machine import share_cores
from keras_bert_flow.config.pipeline import Cell, list_cells
from keras_bert_flow.console.terminal import as_markdown
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
    settled = [settle_config(config_path, (*overrides, *cell.overrides)) for cell in cells]
    with holding_plan(*settled):
        if not IS_CHECKED.get():
            for one in settled:
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
        _settle_pool(client, pool, parallel)
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


def _settle_pool(client: SyncPrefectClient, name: str, parallel: int) -> None:
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
