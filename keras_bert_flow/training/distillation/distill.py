"""Distil a smaller model from a teacher on pre-training records, and publish its model directory."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import keras

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.input_states import hold
from keras_bert_flow.local_paths import check_local
from keras_bert_flow.models.backbone import Backbone
from keras_bert_flow.models.flops import count_flops
from keras_bert_flow.models.pretraining.distiller import Distiller
from keras_bert_flow.models.pretraining.masked_lm import MaskedLM
from keras_bert_flow.models.sizes import resolve_shape
from keras_bert_flow.models.with_head import ModelWithHead
from keras_bert_flow.precision_choice import resolve_precision
from keras_bert_flow.stages.distillation import DISTILLATION, distillation_inputs, distillation_key
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.text.objectives.distillation import Distillation
from keras_bert_flow.training.distillation.student_start import copy_layers
from keras_bert_flow.training.pretraining.run import Recipe, Report, publish_run
from keras_bert_flow.training.state.identity import distillation_identity

FACTS = frozenset({"name", "seed", "backend", "model", "pretraining", "distillation"})
LOSSES = ("temperature", "soft_target_weight", "masked_lm_weight", "hidden_state_weight")


def distill(
    config: PipelineConfig,
    records: str | Path,
    teacher: str | Path,
    output: str | Path,
    report: Report = print,
    callbacks: Sequence[keras.callbacks.Callback] = (),
) -> Path:
    """Distil a student and publish a folder like `pretraining.pretrain`; return at once if it exists.

    Args:
        config: its sections `distillation`, which is required, and `pretraining`, and the seed are used.
        records: output of `kbf records`, of any objective.
        teacher: a model directory, ours or Hugging Face's, with a masked-LM head and the vocabulary of the records.
        output, report, callbacks: as for `pretraining.pretrain`.
    Raises:
        FileNotFoundError, ValueError, Interrupted: as for `pretraining.pretrain`, or the student does not fit the
            teacher.
    """
    check_local(output)
    config, records, teacher = resolve_precision(config, keras.backend.backend()), fetch(records, False), fetch(teacher)
    settings = config.needed_distillation
    recipe = Recipe(
        DISTILLATION,
        config.student,
        FACTS,
        source=teacher,
        is_new=settings.start == "random",
        objective=Distillation(settings.soft_target_weight > 0, settings.hidden_state_weight > 0),
        inputs=hold(records, teacher),
        find_key=partial(distillation_key, config, records, teacher),
        find_inputs=partial(distillation_inputs, records, teacher),
        find_identity=partial(distillation_identity, config, records, teacher),
        make_model=partial(make_distiller, config, teacher),
        count_operations=_count_operations,
    )
    return publish_run(recipe, records, output, report, callbacks)


def make_distiller(config: PipelineConfig, teacher: Path, training: PretrainingRecords) -> Distiller:
    """Load the teacher, and build a student from the section `distillation`."""
    settings = config.needed_distillation
    known = MaskedLM.from_preset(teacher, dropout_rate=0.0, attention_dropout_rate=0.0)
    shape = resolve_shape(settings.student, known.backbone.vocabulary_size)
    sizes = shape.describe() | {"num_pieces": known.backbone.shape.num_pieces}
    student = MaskedLM(Backbone(settings.student.family, use_pooler=False, **sizes))
    if settings.start == "teacher":
        copy_layers(known, student)
    return Distiller(student, known, **{name: getattr(settings, name) for name in LOSSES})


def _count_operations(model: ModelWithHead, length: int, masks: int) -> int:
    """Count the training FLOPs of one sequence: those of the student, and the forward pass of the teacher."""
    student, teacher = (
        count_flops(part.backbone.shape, length, masks, use_pooler=False) for part in (model, model.teacher)
    )
    return student.training + teacher.forward
