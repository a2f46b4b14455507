"""The stages that train models on records: pre-training, and distillation of a smaller one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.results.artifacts import OpenedFiles
from keras_bert_flow.results.stages.keys import Stage, folder_digest, refuse_auto

PRETRAINING = Stage(
    "pretraining",
    "pretrain",
    made_by="keras_bert_flow.training.pretraining.pretrain",
    revision=1,
    options={"records": "--records", "initial_model": "--initial-model"},
)
AT_WORDS = "words"  # folder of the models that are saved on the way, each in one of its number of words
INITIAL = "initial"  # folder of the model before the first step, where its token embeddings are not random
# Settings of pre-training that change what is logged and kept, but not the resulting weights and scores.
MONITORING = (
    "log_every_steps",
    "tensorboard",
    "checkpoint_every_steps",
    "keep_checkpoints",
    "keep_best",
    "peak_flops",
)
# Settings of `pretraining` and `distillation` that are in a key, and in the identity of a run, only when they differ
# from these values: results and checkpoints that were made before there were such settings keep theirs.
ABSENT_WHEN_OFF = {
    "scan_layers": False,
    "span_boundary_weight": 1.0,
    "masked_fraction_end": None,
    "masked_fraction_least": None,
    "save_at_words": (),
    "attention_score_weight": 0.0,
    "layer_state_weight": 0.0,
    "feature_map_weight": 0.0,
    "attention_map_weight": 0.0,
    "transfer": "auxiliary",
    "layer_transfer_steps": 0,
}


def pretraining_key(
    config: PipelineConfig,
    records: Path,
    initial_model: Path | None = None,
    earlier: Sequence = (),
    files: OpenedFiles | None = None,
) -> str:
    """Return the content key of a pre-trained model.

    Args:
        earlier: different settings that its first steps used.
        files: reads the files of the records, each opened once; by default they are opened here.
    """
    inputs = pretraining_inputs(records, initial_model, files)
    return PRETRAINING.make_key(pretraining_settings(config, earlier), inputs)


def pretraining_settings(config: PipelineConfig, earlier: Sequence = ()) -> dict[str, Any]:
    """Return the settings that are part of the key."""
    refuse_auto(pretraining=config.pretraining.precision)
    settings = config.model_dump(include={"model", "seed", "backend"})
    unseen = {*MONITORING, *list_off(config.pretraining)}
    if config.pretraining.publish != "best":  # else the evaluation interval affects which model is published
        unseen.add("evaluate_every_steps")
    settings["pretraining"] = config.pretraining.model_dump(exclude=unseen)
    return settings | ({"earlier": list(earlier)} if earlier else {})


def list_off(settings: Any) -> list[str]:
    """Return the settings of `ABSENT_WHEN_OFF` that a section has, and that are off."""
    return [name for name, off in ABSENT_WHEN_OFF.items() if getattr(settings, name, None) == off]


def pretraining_inputs(records: Path, initial_model: Path | None, files: OpenedFiles | None = None) -> dict[str, str]:
    """Digest the inputs of a pre-training; `files` as for `pretraining_key`."""
    initial = {} if initial_model is None else {"initial_model": folder_digest(initial_model)}
    return {"records": folder_digest(records, files)} | initial


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
