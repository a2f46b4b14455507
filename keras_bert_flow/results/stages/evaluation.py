"""The stage that evaluates models and writes the report."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.results.artifacts import file_digest
from keras_bert_flow.results.publishing import verify
from keras_bert_flow.results.stages.keys import (
    Stage,
    digest_table,
    drop_paths,
    folder_digest,
    refuse_auto,
    task_digests,
)

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
    return drop_paths(config.model_dump(exclude=left_out))


def evaluation_inputs(finetuned: Path, records: Path, phases: Sequence[Path]) -> dict[str, str]:
    """Digest the inputs of an evaluation report."""
    pretrained = {f"pretrained-{number}": folder_digest(folder) for number, folder in enumerate(phases, 1)}
    return {"finetuned": folder_digest(finetuned), "records": folder_digest(records)} | pretrained
