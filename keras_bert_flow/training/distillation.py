"""Distil a smaller model from a teacher on pre-training records, and publish its model directory."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import keras
import numpy as np

from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.precision import resolve_precision
from keras_bert_flow.data.pretraining_records import PretrainingRecords, RecordsFolder
from keras_bert_flow.files.inputs import hold
from keras_bert_flow.files.paths import check_local
from keras_bert_flow.models.backbone import Backbone
from keras_bert_flow.models.pretraining.distiller import Distiller
from keras_bert_flow.models.pretraining.masked_lm import MaskedLM
from keras_bert_flow.models.sizes import check_start, count_flops, resolve_shape
from keras_bert_flow.models.with_head import ModelWithHead
from keras_bert_flow.results.stages.distillation import DISTILLATION, distillation_inputs, distillation_key
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.text.objectives.distillation import Distillation
from keras_bert_flow.training.loop.identity import distillation_identity
from keras_bert_flow.training.pretraining.pretrain import Recipe, Report, publish_run

# Initialise a student from layers of its teacher.

POSITIONS, SEGMENTS = "embeddings/position_embedding", "embeddings/segment_embedding"


def copy_layers(teacher: MaskedLM, student: MaskedLM) -> None:
    """Copy the embeddings, the head and evenly spaced blocks of a teacher, from the lowest up, to a student.

    For a student without segments, the embedding of segment 0 is added to the position embeddings. As many positions
    are copied as both models have.

    Raises:
        ValueError: the layers do not fit; see `check_start`.
    Source: Sanh et al. 2019, section 3, who take every second layer.
    """
    theirs, ours = teacher.backbone, student.backbone
    check_start(ours.shape, theirs.shape)
    # Some families share one block among several layers.
    per_layer = [theirs.blocks[layer * len(theirs.blocks) // theirs.num_layers] for layer in range(theirs.num_layers)]
    chosen = [per_layer[number * theirs.num_layers // len(ours.blocks)] for number in range(len(ours.blocks))]
    pairs = [(theirs.token_embedding, ours.token_embedding), *zip(chosen, ours.blocks, strict=True)]
    pairs += [(teacher.get_layer(name), student.get_layer(name)) for name in ("mlm_transform", "mlm")]
    if ours.widening is not None and theirs.widening is not None:
        pairs.append((theirs.widening, ours.widening))
    for source, target in pairs:
        for value, variable in zip(source.weights, target.weights, strict=True):
            variable.assign(np.array(read_variable(value)))
    _copy_embeddings(theirs, ours)


def _copy_embeddings(theirs, ours) -> None:
    values = {weight.path: np.array(read_variable(weight)) for weight in theirs.get_layer("embeddings").weights}
    target = {weight.path: weight for weight in ours.get_layer("embeddings").weights}
    if SEGMENTS in values and SEGMENTS not in target:
        values[POSITIONS] = values[POSITIONS] + values[SEGMENTS][0]
    for path, variable in target.items():
        if path == POSITIONS:
            first, last = theirs.shape.position_offset, ours.shape.position_offset
            count = min(theirs.max_positions, ours.max_positions)
            rows = np.array(read_variable(variable))
            rows[last : last + count] = values[path][first : first + count]
            variable.assign(rows)
        elif path == SEGMENTS:
            rows = np.array(read_variable(variable))
            count = min(len(rows), len(values.get(path, ())))
            rows[:count] = values[path][:count] if count else 0.0
            variable.assign(rows)
        else:
            variable.assign(values[path])


FACTS = frozenset({"name", "seed", "backend", "model", "pretraining", "distillation"})
LOSSES = ("temperature", "soft_target_weight", "masked_lm_weight", "hidden_state_weight")


def distill(
    config: PipelineConfig,
    records: str | Path | RecordsFolder,
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
    config, opened, teacher = (
        resolve_precision(config, keras.backend.backend()),
        RecordsFolder.of(records),
        fetch(teacher),
    )
    folder, files = opened.folder, opened.files
    settings = config.needed_distillation
    recipe = Recipe(
        DISTILLATION,
        config.student,
        FACTS,
        source=teacher,
        is_new=settings.start == "random",
        objective=Distillation(settings.soft_target_weight > 0, settings.hidden_state_weight > 0),
        inputs=hold(folder, teacher),
        find_key=partial(distillation_key, config, folder, teacher, files=files),
        find_inputs=partial(distillation_inputs, folder, teacher, files),
        find_identity=partial(distillation_identity, config, folder, teacher, files),
        make_model=partial(make_distiller, config, teacher),
        count_operations=_count_operations,
    )
    return publish_run(recipe, opened, output, report, callbacks)


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
