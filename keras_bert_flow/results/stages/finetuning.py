"""The stage that fine-tunes a model on a task."""

from pathlib import Path
from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.results.stages.keys import Stage, drop_paths, folder_digest, refuse_auto, task_digests

FINETUNING = Stage(
    "finetuning",
    "finetune",
    made_by="keras_bert_flow.training.finetuning.finetune",
    revision=1,
    options={"model": "--model"},
    reads_tables=True,
)


def finetuning_key(config: PipelineConfig, model: Path) -> str:
    settings = finetuning_settings(config)
    return FINETUNING.make_key(settings, {"model": folder_digest(model)} | task_digests(config))


def finetuning_settings(config: PipelineConfig) -> dict[str, Any]:
    """Return the settings that are part of the key."""
    refuse_auto(finetuning=config.finetuning.precision)
    return drop_paths(config.model_dump(include={"task", "finetuning", "backend"}))
