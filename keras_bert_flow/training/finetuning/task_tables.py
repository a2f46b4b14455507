"""Fetch the tables of a task from remote storage."""

from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.local_paths import find_address
from keras_bert_flow.stores.fetching import fetch


def fetch_tables(config: PipelineConfig) -> PipelineConfig:
    """Return a configuration with local paths for the tables of the task and of minimal pairs.

    Remote tables are fetched through the cache; local paths are unchanged. Keys are digests of the bytes, so a table
    and a remote copy of it are the same input.

    Raises:
        FileNotFoundError, OSError, ValueError: as for `stores.fetching.fetch`.
    """
    task, evaluation = config.task, config.evaluation
    tables: dict[str, Any] = {"train": fetch_table(task.train), "dev": fetch_table(task.dev)}
    tables["extra_dev"] = {name: fetch_table(path) for name, path in task.extra_dev.items()}
    pairs = evaluation.minimal_pairs and fetch_table(evaluation.minimal_pairs)
    return config.model_copy(
        update={
            "task": task.model_copy(update=tables),
            "evaluation": evaluation.model_copy(update={"minimal_pairs": pairs}),
        }
    )


def fetch_table(path: str) -> str:
    """Return the local path of a table, fetched if it is remote; errors as for `fetch_tables`."""
    return str(fetch(path)) if find_address(path) else path
