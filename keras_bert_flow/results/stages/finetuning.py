"""The stage that fine-tunes a model on a task."""

from pathlib import Path
from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.results.stages.augmentation import find_augmentation
from keras_bert_flow.results.stages.keys import (
    Stage,
    digest_table,
    drop_paths,
    folder_digest,
    refuse_auto,
    task_digests,
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
    return settings | {"finetuning": drop_teacher(settings["finetuning"])}


def drop_teacher(settings: dict[str, Any]) -> dict[str, Any]:
    """Drop the path of the teacher, whose content is digested separately; without one also what is for it alone.

    Results and checkpoints that were made before there were such settings keep their keys and identities.
    """
    unseen = OF_TEACHER if settings["teacher"] is None else ("teacher",)
    return {name: value for name, value in settings.items() if name not in unseen}
