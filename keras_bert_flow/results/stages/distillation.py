"""The stage that distils a smaller model from a pre-trained one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.results.artifacts import OpenedFiles
from keras_bert_flow.results.stages.keys import Stage, folder_digest
from keras_bert_flow.results.stages.pretraining import list_off, pretraining_settings

DISTILLATION = Stage(
    "distillation",
    "distill",
    made_by="keras_bert_flow.training.distillation",
    revision=1,
    options={"records": "--records", "teacher": "--teacher"},
)


def distillation_key(
    config: PipelineConfig, records: Path, teacher: Path, earlier: Sequence = (), files: OpenedFiles | None = None
) -> str:
    """Return the content key of a distilled model.

    Args:
        config: configuration of the whole run.
        teacher: model directory of the teacher.
        earlier: different settings that its first steps were made with.
        files: as for `pretraining_key`.
    """
    inputs = distillation_inputs(records, teacher, files)
    return DISTILLATION.make_key(distillation_settings(config.student, earlier), inputs)


def distillation_settings(student: PipelineConfig, earlier: Sequence = ()) -> dict[str, Any]:
    """Return the settings that are part of the key, from the configuration of the student."""
    settings, distillation = pretraining_settings(student, earlier), student.needed_distillation
    unseen = {"teacher", "student", *list_off(distillation)}
    return settings | {"distillation": distillation.model_dump(exclude=unseen)}


def distillation_inputs(records: Path, teacher: Path, files: OpenedFiles | None = None) -> dict[str, str]:
    """Digest the inputs of a distillation."""
    return {"records": folder_digest(records, files), "teacher": folder_digest(teacher)}
