"""Give the tables of a task paths on this disk, wherever they are."""

from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.local_paths import find_address
from keras_bert_flow.stores.fetching import fetch


def fetch_tables(config: PipelineConfig) -> PipelineConfig:
    """Return a configuration whose tables are on this disk: of the task, and of minimal pairs.

    What is elsewhere is fetched through the cache; paths on this disk stay as they are. Keys digest the bytes, so a
    table and a copy of it elsewhere are the same input.

    Raises:
        FileNotFoundError, OSError, ValueError: as of `stores.fetching.fetch`.
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
    """Return the path on this disk of a table; errors as of `fetch_tables`."""
    return str(fetch(path)) if find_address(path) else path
