"""The stages of a task: more rows for its training table, fine-tuning, and the report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.files.outputs import MANIFEST
from keras_bert_flow.results.artifacts import file_digest
from keras_bert_flow.results.manifest import Manifest, read_manifest
from keras_bert_flow.results.publishing import verify
from keras_bert_flow.results.stages.keys import (
    Stage,
    digest_table,
    drop_paths,
    folder_digest,
    refuse_auto,
    task_digests,
)
from keras_bert_flow.text.vocabulary import WORD_PIECE

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


FINETUNING = Stage(
    "finetuning",
    "finetune",
    made_by="keras_bert_flow.training.finetuning.finetune",
    revision=1,
    options={"model": "--model"},
    reads_tables=True,
)

OF_TEACHER = ("teacher", "layer_epochs")  # settings that are in no key without a teacher
UNSEEN_WHEN_OFF = (*OF_TEACHER, "packing")


def finetuning_key(config: PipelineConfig, model: Path) -> str:
    inputs = finetuning_inputs(config, model)
    return FINETUNING.make_key(finetuning_settings(config), inputs | task_digests(config))


def finetuning_inputs(config: PipelineConfig, model: Path) -> dict[str, str]:
    """Digest the model directories of a fine-tuning, and its training table if `kbf augment` has made that."""
    teacher, train = config.finetuning.teacher, Path(config.task.train)
    inputs = {"model": folder_digest(model)} | ({} if teacher is None else {"teacher": folder_digest(Path(teacher))})
    return inputs | ({} if find_augmentation(train) is None else {"train": digest_table(train)})


def finetuning_settings(config: PipelineConfig) -> dict[str, Any]:
    """Return the settings that are part of the key."""
    refuse_auto(finetuning=config.finetuning.precision)
    settings = drop_paths(config.model_dump(include={"task", "finetuning", "backend"}))
    return settings | {"finetuning": drop_unused(settings["finetuning"])}


def drop_unused(settings: dict[str, Any]) -> dict[str, Any]:
    """Drop the path of the teacher, whose content is digested separately; without one also what is for it alone.

    Packing is dropped if it is off. Results and checkpoints that were made before there were such settings keep their
    keys and identities.
    """
    unseen = {"teacher", *(OF_TEACHER if settings["teacher"] is None else ()), *list_unpacked(settings)}
    return {name: value for name, value in settings.items() if name not in unseen}


def list_unpacked(settings: dict[str, Any]) -> tuple[str, ...]:
    return () if settings["packing"] else ("packing",)


EVALUATION = Stage(
    "evaluation",
    "report",
    made_by="keras_bert_flow.evaluation.evaluate",
    revision=1,
    options={"finetuned": "--finetuned", "records": "--records"},
    reads_tables=True,
)


def evaluation_key(config: PipelineConfig, finetuned: Path, records: Path, phases: Sequence[Path] = ()) -> str:
    """Return the content key of a report; `phases` are the pre-training folders whose scores it shows."""
    settings, pairs = evaluation_settings(config), config.evaluation.minimal_pairs
    extra = {f"extra_dev {name}": digest_table(Path(path)) for name, path in config.task.extra_dev.items()}
    if pairs:
        verify(pairs)
        extra["minimal_pairs"] = file_digest(pairs)
    inputs = evaluation_inputs(finetuned, records, phases) | task_digests(config) | extra
    return EVALUATION.make_key(settings, inputs)


def evaluation_settings(config: PipelineConfig) -> dict[str, Any]:
    """Return the settings that are part of the key."""
    refuse_auto(pretraining=config.pretraining.precision, finetuning=config.finetuning.precision)
    left_out = {"runs", "beam", "distribution", "loggers", "matrix", "tuning"}
    if config.evaluation.minimal_pairs is None:
        left_out.add("evaluation")
    if config.augmentation is None:
        left_out.add("augmentation")
    settings = drop_paths(config.model_dump(exclude=left_out))
    # Reports keep their keys where what came later is off.
    unseen = {"finetuning": list_unpacked(settings["finetuning"])}
    unseen["vocabulary"] = ("kind",) if config.vocabulary.kind == WORD_PIECE else ()
    kept = {section: {*settings[section]} - {*names} for section, names in unseen.items()}
    return settings | {section: {name: settings[section][name] for name in names} for section, names in kept.items()}


def evaluation_inputs(finetuned: Path, records: Path, phases: Sequence[Path]) -> dict[str, str]:
    """Digest the inputs of an evaluation report."""
    pretrained = {f"pretrained-{number}": folder_digest(folder) for number, folder in enumerate(phases, 1)}
    return {"finetuned": folder_digest(finetuned), "records": folder_digest(records)} | pretrained
