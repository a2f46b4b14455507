"""The stage that augments the training table of a task, and the configuration that trains on its result."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.files.outputs import MANIFEST
from keras_bert_flow.results.artifacts import file_digest
from keras_bert_flow.results.manifest import Manifest, read_manifest
from keras_bert_flow.results.stages.keys import Stage, digest_table, folder_digest

AUGMENTATION = Stage(
    "augmentation",
    "augment",
    made_by="keras_bert_flow.training.augmentation",
    revision=1,
    options={"model": "--model"},
    reads_tables=True,
)
TABLE = "train.jsonl"  # in the folder of the stage; the rows that were augmented come first
ROWS, TABLE_ROWS = "rows", "table_rows"  # counters: all rows, and those of the table that was augmented
_NOT_COUNTED = {"seed", "model", "stop_words"}  # resolved, or digested


def augmentation_key(config: PipelineConfig, model: Path) -> str:
    """Return the content key of an augmented table; `model` is the directory that proposes the words."""
    return AUGMENTATION.make_key(augmentation_settings(config), augmentation_inputs(config, model))


def augmentation_settings(config: PipelineConfig) -> dict[str, Any]:
    """Return the settings that are part of the key."""
    settings = config.needed_augmentation
    return {
        "augmentation": settings.model_dump(exclude=_NOT_COUNTED),
        "seed": config.seed if settings.seed is None else settings.seed,
        "backend": config.backend,
        "task": {name: value for name, value in config.task.arguments.items() if name != "main_metric"},
        "max_train_examples": config.finetuning.max_train_examples,
    }


def augmentation_inputs(config: PipelineConfig, model: Path) -> dict[str, str]:
    """Digest the model, the training table, and the file of stop words, if one is given."""
    stop_words = config.needed_augmentation.stop_words
    inputs = {"model": folder_digest(model), "train": digest_table(Path(config.task.train))}
    return inputs | ({} if stop_words is None else {"stop_words": file_digest(Path(stop_words))})


def resolve_augmented(config: PipelineConfig, folder: Path) -> PipelineConfig:
    """Return the configuration that trains on all rows of the table in a folder of the stage."""
    return config.model_copy(
        update={
            "task": config.task.model_copy(update={"train": str(folder / TABLE)}),
            "finetuning": config.finetuning.model_copy(update={"max_train_examples": None}),
            "augmentation": None,
        }
    )


def find_augmentation(table: str | Path) -> Manifest | None:
    """Return the manifest of the stage that made a training table; None for any other table."""
    path = Path(table)
    if path.name != TABLE or not (path.parent / MANIFEST).is_file():
        return None
    manifest = read_manifest(path.parent)
    return manifest if manifest.stage == AUGMENTATION.name else None


def drop_copies(table: str | Path, examples: Sequence[Any]) -> Sequence[Any]:
    """Return the examples of a training table without the copies that the stage added.

    Baselines are fitted to these: copies of a row on both sides of a cross-validation would mislead it.
    """
    manifest = find_augmentation(table)
    return examples if manifest is None else examples[: manifest.counters[TABLE_ROWS]]


def describe_augmentation(table: str | Path) -> str:
    """Return a line on the rows of a training table that the stage made; "" for any other table."""
    manifest = find_augmentation(table)
    if manifest is None:
        return ""
    settings, counts = manifest.config["augmentation"], manifest.counters
    return (
        f"The training file is augmented: {counts[TABLE_ROWS]:,} rows became {counts[ROWS]:,}, by {settings['copies']} "
        f"copies of each in which words are replaced with probability {settings['replacement_probability']:g}."
    )
