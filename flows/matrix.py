"""Run many variants of one configuration as one flow: each as a flow run of its own, with one table at the end.

Results are content-addressed: the first run that needs a shared result, such as the records, makes it.
"""

from collections import deque
from pathlib import Path

from prefect import flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.futures import PrefectFuture, as_completed
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_API_URL

from flows.child import stop_children
from flows.form import name_run
from flows.local import FLOW_GRACE_SECONDS, QUIET, run_flow
from flows.pipeline import IS_CHECKED
from flows.plan import holding_plan
from flows.settling import DEFAULT_CONFIG, make_paths_absolute, settle_config
from flows.stages import StageError
from keras_bert_flow.artifacts import write_atomically
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.matrix import Cell, list_cells
from keras_bert_flow.evaluation.run_table import runs_markdown
from keras_bert_flow.local_paths import find_address, name_path
from keras_bert_flow.machine import share_cores
from keras_bert_flow.preflight.run import check_run
from keras_bert_flow.stores.fetching import fetch

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
        text = runs_markdown({label: fetch(page.parent) for label, page in made.items()}) if made else ""
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
