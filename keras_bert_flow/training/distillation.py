"""Distil a smaller model from a teacher on pre-training records, and publish its model directory."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import keras
import numpy as np

from keras_bert_flow.backends.runtime import arithmetic, seed_everything
from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.config.pipeline import PipelineConfig, resolve_precision
from keras_bert_flow.conversion.adapters import check_whole
from keras_bert_flow.data.pretraining_records import RecordsFolder
from keras_bert_flow.files.inputs import hold
from keras_bert_flow.files.paths import check_local
from keras_bert_flow.models.backbone import Backbone, PresetModel
from keras_bert_flow.models.pretraining.distiller import Distiller, find_encoder
from keras_bert_flow.models.pretraining.masked_lm import MaskedLM
from keras_bert_flow.models.saved_as import MASKED_LM_EXTENSION
from keras_bert_flow.models.sizes import check_start, check_transfer, count_flops, resolve_shape
from keras_bert_flow.results.publishing import Contents
from keras_bert_flow.results.stages.models import DISTILLATION, INITIAL, distillation_inputs, distillation_key
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.text.objectives.mlm import Distillation
from keras_bert_flow.training.loop.identity import distillation_identity
from keras_bert_flow.training.pretraining.pretrain import (
    CHECKPOINTS,
    EARLIER,
    Report,
    find_earlier,
    open_checkpoints,
    open_records,
    save_model,
    save_result,
    start_processes,
    track,
    train_on_records,
)
from keras_bert_flow.training.pretraining.pretrainers import compile_pretrainer, set_initial_tokens
from keras_bert_flow.training.processes import check_same_run, published_together

SECTIONS = {"name", "seed", "backend", "model", "pretraining", "distillation"}  # in the manifest
LOSSES = (
    "temperature",
    "soft_target_weight",
    "masked_lm_weight",
    "hidden_state_weight",
    "attention_score_weight",
    "layer_state_weight",
    "feature_map_weight",
    "attention_map_weight",
)


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
        teacher: a model directory, ours or Hugging Face's, with the vocabulary of the records, and with a masked-LM
            head unless layers alone are compared: the student is then published as an encoder without a head.
        output, report, callbacks: as for `pretraining.pretrain`.
    Raises:
        FileNotFoundError, ValueError, Interrupted: as for `pretraining.pretrain`, or the student does not fit the
            teacher.
    Example:
        >>> config, log = kbf.load_config("run.yaml"), []
        >>> folder = kbf.distill(config, "records", teacher="model", output="out/student", report=log.append)
        >>> (folder / "model" / "config.json").is_file()
        True
    """
    check_local(output)
    config = resolve_precision(config, keras.backend.backend())
    opened, teacher = RecordsFolder.of(records), fetch(teacher)
    folder, files = opened.folder, opened.files
    student, distillation = config.student, config.needed_distillation
    settings = student.pretraining
    inputs = hold(folder, teacher)
    check_whole(teacher)
    key = distillation_key(
        config, folder, teacher, files=files
    )  # raises for invalid inputs before anything else is done
    cluster = start_processes(student, opened, output, callbacks)

    with published_together(
        cluster,
        output,
        DISTILLATION,
        lambda made: distillation_key(config, folder, teacher, made.get(EARLIER, ()), files),
        inputs,
        scratch=CHECKPOINTS,
    ) as work:
        if work is None:
            return Path(output)
        shape = resolve_shape(distillation.student, opened.tokenizer.vocabulary_size)
        check_transfer(shape, distillation)
        objective = Distillation.of(distillation, shape.num_layers)
        data = open_records(opened, student, tokenizer_of=teacher, objective=objective)
        identity = distillation_identity(config, folder, teacher, files)
        check_same_run(cluster, identity | {"pretraining": settings.model_dump(mode="json")})
        seed_everything(config.seed)
        checkpoints, best, steps_done = open_checkpoints(work, student, identity, inputs, cluster)
        with arithmetic(settings.precision), cluster.scope():
            model = make_distiller(config, teacher)
            if distillation.start == "random" and not steps_done:
                set_initial_tokens(model, data.training, settings, config.seed)
                if settings.token_embeddings != "random" and cluster.is_first:
                    save_model(model, data, work.folder / INITIAL)
        facts = student.model_dump(mode="json", include=SECTIONS)
        with cluster.scope(), track(DISTILLATION, student, key, facts, work, cluster) as tracker:
            compile_pretrainer(model, student, cluster, objective.transfer)
            length, masks = data.training.sequence_length, data.count_masks() if distillation.has_head else 0
            flops = count_flops(model.backbone.shape, length, masks, use_pooler=False).training
            flops += count_flops(find_encoder(model.teacher).shape, length, masks, use_pooler=False).forward
            metrics = train_on_records(
                model, student, data, work, checkpoints, best, flops, report, callbacks, tracker.start, cluster
            )
            tracker.metrics = metrics
            inputs.check()  # in each process, which may see other disks
            if cluster.is_first:
                save_result(model, student, data, metrics, work.folder)
        facts |= find_earlier(checkpoints, settings, metrics["steps"])
        work.contents = Contents(facts, distillation_inputs(folder, teacher, files))
    return Path(output)


def make_distiller(config: PipelineConfig, teacher: Path) -> Distiller:
    """Load the teacher, and build a student from the section `distillation`."""
    settings, still = config.needed_distillation, {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
    known: PresetModel = (MaskedLM if settings.has_head else Backbone).from_preset(teacher, **still)
    encoder = find_encoder(known)
    shape = resolve_shape(settings.student, encoder.vocabulary_size)
    sizes = asdict(shape) | {"num_pieces": encoder.shape.num_pieces}
    student: PresetModel = Backbone(settings.student.family, use_pooler=False, **sizes)
    student = MaskedLM(student) if settings.has_head else student
    if settings.start != "random":
        copy_layers(known, student, with_blocks=settings.start == "teacher")
    return Distiller(student, known, **{name: getattr(settings, name) for name in LOSSES})


# Initialise a student from layers of its teacher.

POSITIONS, SEGMENTS, NORM = "embeddings/position_embedding", "embeddings/segment_embedding", "embeddings/norm/"


def copy_layers(teacher: PresetModel, student: PresetModel, with_blocks: bool = True) -> None:
    """Copy the embeddings, the head, if any, and evenly spaced blocks of a teacher, from the lowest up, to a student.

    For a student without segments, the embedding of segment 0 is added to the position embeddings. As many positions
    are copied as both models have, if any. The norm of the embeddings is copied if it is of the same kind. A norm above
    the blocks is copied with them.

    Args:
        with_blocks: whether blocks are copied too.
    Raises:
        ValueError: the layers do not fit; see `check_start`.
    Source: Sanh et al. 2019, section 3, who take every second layer.
    """
    theirs, ours = find_encoder(teacher), find_encoder(student)
    check_start(ours.shape, theirs.shape, with_blocks)
    # Some families share one block among several layers.
    per_layer = [theirs.blocks[layer * len(theirs.blocks) // theirs.num_layers] for layer in range(theirs.num_layers)]
    chosen = [per_layer[number * theirs.num_layers // len(ours.blocks)] for number in range(len(ours.blocks))]
    pairs: list[tuple[Any, Any]] = [(theirs.token_embedding, ours.token_embedding)]
    pairs += zip(chosen, ours.blocks, strict=True) if with_blocks else ()
    heads = ("mlm_transform", "mlm", *(MASKED_LM_EXTENSION if ours.shape.mlm_extension_dim else ()))
    heads = heads if student is not ours else ()
    pairs += [(teacher.get_layer(name), student.get_layer(name)) for name in heads]
    if with_blocks and ours.final_norm is not None:
        pairs.append((theirs.final_norm, ours.final_norm))
    if with_blocks and ours.relative_positions is not None:
        pairs.append((theirs.relative_positions, ours.relative_positions))
    if ours.embedding_projection is not None and theirs.embedding_projection is not None:
        pairs.append((theirs.embedding_projection, ours.embedding_projection))
    for source, target in pairs:
        for value, variable in zip(source.weights, target.weights, strict=True):
            variable.assign(np.array(read_variable(value)))
    _copy_embeddings(theirs, ours)


def _copy_embeddings(theirs, ours) -> None:
    values = {weight.path: np.array(read_variable(weight)) for weight in theirs.get_layer("embeddings").weights}
    target = {weight.path: weight for weight in ours.get_layer("embeddings").weights}
    if ours.shape.normalization != theirs.shape.normalization:
        target = {path: weight for path, weight in target.items() if not path.startswith(NORM)}
    if POSITIONS not in values:  # of a teacher whose attention knows the positions
        target.pop(POSITIONS, None)
    elif SEGMENTS in values and SEGMENTS not in target:
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
