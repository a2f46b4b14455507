"""Register deployments on a Prefect server, so that runs can be started from its UI.

This creates a work pool, a deployment for each flow and configuration, and an automation that ends dead runs.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from prefect import Flow, get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate, WorkPoolUpdate
from prefect.exceptions import ObjectNotFound

from flows.dead_runs import end_silent_runs
from flows.evaluate import evaluate
from flows.finetune import finetune
from flows.form import describe_form
from flows.matrix import bert_matrix
from flows.own_server import POOL_TEMPLATE, WORKING_DIRECTORY
from flows.pipeline import bert_pipeline
from flows.preprocess import preprocess
from flows.pretrain import pretrain
from keras_bert_flow.config.loading import load_config

# Flow → the object that a worker imports
FLOWS: dict[Flow, str] = {
    bert_pipeline: "flows.pipeline.bert_pipeline",
    bert_matrix: "flows.matrix.bert_matrix",
    preprocess: "flows.preprocess.preprocess",
    pretrain: "flows.pretrain.pretrain",
    finetune: "flows.finetune.finetune",
    evaluate: "flows.evaluate.evaluate",
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
        chosen = [flow for flow in FLOWS if (flow is bert_matrix) == (config.matrix is not None)]
        for flow, entrypoint in ((flow, FLOWS[flow]) for flow in chosen):
            yield flow, entrypoint, name, f"{flow.description}\n\n{config.name}", describe_form(flow, config, path)


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
