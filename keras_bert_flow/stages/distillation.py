"""The stage that distils a smaller model from a pre-trained one."""

from collections.abc import Sequence
from pathlib import Path

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.stages.digests import folder_digest
from keras_bert_flow.stages.pretraining import find_unseen
from keras_bert_flow.stages.stage import Stage, refuse_auto

DISTILLATION = Stage("distillation", "distill", made_by="keras_bert_flow.training.distillation.distill", revision=1)


def distillation_key(config: PipelineConfig, records: Path, teacher: Path, earlier: Sequence = ()) -> str:
    """Return the content key of a distilled model.

    Args:
        config: configuration of the whole run.
        teacher: model directory of the teacher.
        earlier: different settings that its first steps were made with.
    """
    student = config.student
    refuse_auto(pretraining=student.pretraining.precision)
    settings = student.model_dump(include={"model", "seed", "backend"})
    settings["pretraining"] = student.pretraining.model_dump(exclude=find_unseen(student))
    settings["distillation"] = config.needed_distillation.model_dump(exclude={"teacher", "student"})
    if earlier:
        settings["earlier"] = list(earlier)
    return DISTILLATION.make_key(settings, distillation_inputs(records, teacher))


def distillation_inputs(records: Path, teacher: Path) -> dict[str, str]:
    """Digest the inputs of a distillation."""
    return {"records": folder_digest(records), "teacher": folder_digest(teacher)}
