"""Check a whole run before its first stage starts, with its distillation and its initial model."""

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from keras_bert_flow.checks.stages import (
    check_augmentation,
    check_corpus,
    check_finetuning,
    check_initial_model,
    check_label_words,
    check_minimal_pairs,
    check_model,
    check_names,
    check_pattern,
    check_predictions,
    check_scored_model,
    check_task,
    check_tokenizer,
    packages_of,
)
from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.pretraining import ModelConfig
from keras_bert_flow.conversion.directory import ModelDirectory, check_masked_lm
from keras_bert_flow.data.pretraining_records import RecordsFolder
from keras_bert_flow.files.outputs import check_apart, check_output, check_place
from keras_bert_flow.files.paths import find_address
from keras_bert_flow.installed import check_backend, check_installed
from keras_bert_flow.models.families.family import find_family
from keras_bert_flow.models.sizes import check_start, check_teacher, check_transfer, get_size, resolve_shape
from keras_bert_flow.records.tfrecord import check_positions
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.stores.publishing import check_writable
from keras_bert_flow.text.objectives import DEFAULT
from keras_bert_flow.text.objectives.mlm import check_cutting
from keras_bert_flow.text.objectives.objective import find_objective
from keras_bert_flow.text.tokenizers.files import find_case, find_difference, find_tokenizer_file
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer
from keras_bert_flow.training.finetuning.task_data import TaskFiles, fetch_tables
from keras_bert_flow.training.fit import FREE, check_objective, check_padding

# Check the inputs of a distillation: student, teacher and records.


def check_distillation_stage(config: PipelineConfig, records: Path, teacher: Path, output: Path) -> RecordsFolder:
    """Check the inputs of `kbf distill`, and return its records."""
    check_output(output)
    check_installed(config.loggers)
    if config.distillation is None:
        raise ValueError(
            "There must be a section `distillation` for a student. Received: none. Write one, or use --set "
            "distillation.start=teacher for its defaults."
        )
    folder = RecordsFolder(records)
    made, student = folder.check().config, config.student
    check_model(student)
    length = student.pretraining.sequence_length or made["sequence_length"]
    check_cutting(made.get("objective", DEFAULT), made["sequence_length"], length, made.get("packing", False))
    check_positions(length, student.model.max_positions)
    check_teacher_directory(config, teacher)
    check_padding(student.model, folder.tokenizer)
    folder.check_vocabulary(made["vocabulary_size"], find_tokenizer_file(teacher))
    return folder


def check_distillation(config: PipelineConfig) -> None:
    """Check that the student of a run, if any, can be built and can be distilled from its teacher."""
    if config.distillation is None:
        return
    check_model(config.student)
    if config.distillation.teacher is not None:
        check_teacher_directory(config, Path(config.distillation.teacher))
        return
    size, last = config.vocabulary.size, config.phases[-1].records
    _check_student(config, resolve_shape(config.model, size), size)
    if config.distillation.has_head and find_objective(last.objective).has_generator:
        raise ValueError(
            f"A teacher must have a masked-LM head. Received: records.objective={last.objective}, of which a detector "
            "comes. Use mlm."
        )


def check_teacher_directory(config: PipelineConfig, teacher: Path) -> None:
    """Check that a model directory can be the teacher of a configuration's student."""
    directory = check_initial_model(teacher)
    has_head = config.needed_distillation.has_head
    found = dict(check_masked_lm(directory) if has_head else directory.settings)
    _check_student(config, find_family(found.pop("family")).shape(**found), found["vocabulary_size"])


def check_shared_tokenizer(config: PipelineConfig, tokenizer: Tokenizer) -> None:
    """Check that the tokenizer of `vocabulary.file` is that of the teacher of a distillation, if there is one."""
    given = config.distillation.teacher if config.distillation else None
    if given and (difference := find_difference(tokenizer, ModelDirectory(Path(given)).tokenizer)) is not None:
        raise ValueError(
            f"`vocabulary.file` must be the tokenizer of `distillation.teacher`. Received: {config.vocabulary.file} "
            f"and {given}, with {difference}. Set vocabulary.file to {find_tokenizer_file(given)}."
        )


def _check_student(config: PipelineConfig, teacher: Any, vocabulary_size: int) -> None:
    """Check the student against the shape of its teacher."""
    settings = config.needed_distillation
    student = resolve_shape(settings.student, vocabulary_size)
    check_teacher(
        student,
        teacher,
        settings.hidden_state_weight,
        settings.attention_score_weight,
        settings.layer_state_weight,
        feature_map_weight=settings.feature_map_weight,
        attention_map_weight=settings.attention_map_weight,
    )
    if settings.start != "random":
        check_start(student, teacher, with_blocks=settings.start == "teacher")
    check_transfer(student, settings)


STAGES = ("vocabulary", "records", "pretraining", "finetuning", "evaluation")


def check_run(config: PipelineConfig, stages: Sequence[str] = STAGES, packages: Sequence[str] = ()) -> TaskFiles | None:
    """Check all inputs of a configuration's stages, the cheapest checks first.

    Reading the tables of a task takes most of the time, about 4 s for a million rows: `benchmarks/preflight.py`.

    Args:
        stages: the stages to run.
        packages: packages needed besides those of the stages.
    Returns:
        The task's files if a stage needs them; None for the built-in task.
    Raises:
        FileNotFoundError, OSError, ValueError: an error that would end a stage, with the same message.
    """
    check_backend(config.backend)
    check_installed([*packages, *packages_of(config, stages)])
    check_runs(config)
    if "vocabulary" in stages or "records" in stages:
        check_names(config.runs)
        check_pattern(config.runs)
    if "pretraining" in stages:
        check_model(config)
        for phase in config.phases:
            made = phase.records
            check_objective(made.objective, config.model.family, phase.pretraining.bag_of_words, made.packing)
        check_distillation(config)
    tokenizer = None
    if "vocabulary" in stages and config.vocabulary.file is not None:
        tokenizer = check_tokenizer(config, config.vocabulary.file, "records" in stages)
        if "pretraining" in stages:
            check_shared_tokenizer(config, tokenizer)
        if "finetuning" in stages:
            check_label_words(config, Path(config.vocabulary.file))
    if "records" in stages:
        check_predictions(config)
        for phase in config.phases:
            made = phase.records
            length = phase.pretraining.sequence_length or made.sequence_length
            check_cutting(made.objective, made.sequence_length, length, made.packing)
    if "vocabulary" in stages or "records" in stages:
        check_corpus(config, makes_records="records" in stages)
    if "pretraining" in stages and "finetuning" in stages:
        check_finetuning(config, tokenizer)
    if "finetuning" in stages:
        check_augmentation(config, makes_model="pretraining" in stages)
    if "evaluation" in stages:
        check_scored_model(config)
        check_minimal_pairs(config)
    return check_task(config) if "finetuning" in stages or "evaluation" in stages else None


def check_runs(config: PipelineConfig) -> None:
    """Check that results can be written to the folder of a run, local or remote.

    They must not go into a model that the run reads, whose files are part of their keys.
    """
    if find_address(config.runs):
        check_writable(config.runs)
        return
    check_place(Path(config.runs) / "x")
    models = [config.initial_model, config.distillation.teacher if config.distillation else None]
    models += [config.finetuning.teacher, config.augmentation.model if config.augmentation else None]
    local = [model for model in models if model is not None and not find_address(model)]
    check_apart(config.runs, local, "The folder of results")


# Resolve a configuration for continued pre-training: it takes the initial model's shape and tokenizer.


def resolve_initial_model(config: PipelineConfig) -> PipelineConfig:
    """Return a configuration with the shape and tokenizer of its `initial_model`, which is downloaded if remote.

    Default settings of `model` and `vocabulary` follow the model; others must agree with it.

    Raises:
        FileNotFoundError, OSError, ValueError: the model cannot be fetched, is damaged, or a setting contradicts it.
    """
    if config.initial_model is None:
        return config
    folder = fetch(config.initial_model).absolute()
    found = check_initial_model(folder).settings
    file, given = find_tokenizer_file(folder), config.vocabulary.file
    if given is not None and Path(given).resolve() != file.resolve():
        raise ValueError(
            f"`initial_model` brings its tokenizer. Received: vocabulary.file={given}, another one. Leave it out."
        )
    vocabulary = {"file": str(file), "cased": find_case(file, None)}
    values = config.model_dump() | {
        "initial_model": str(folder),
        "model": _describe_shape(found, config.model),
        "vocabulary": config.vocabulary.model_dump() | vocabulary,
    }
    return make_config(PipelineConfig, values, str(folder))


def _describe_shape(found: dict[str, Any], model: ModelConfig) -> dict[str, Any]:
    """Return the section `model` that describes a model directory; ValueError if a setting contradicts it."""
    names = {field.name for field in fields(find_family(found["family"]).shape)} - FREE - {"vocabulary_size"}
    known = {name: found[name] for name in ("family", *sorted(names)) if name in found}
    shape = {name: value for name, value in known.items() if name in ModelConfig.model_fields}
    options = {name: value for name, value in known.items() if name not in shape}
    default = ModelConfig()
    given = {} if model.size == default.size else get_size(model.size)
    given |= {name: getattr(model, name) for name in shape if getattr(model, name) != getattr(default, name)}
    for name, value in (given | model.options).items():
        if known.get(name) != value:
            raise ValueError(
                f"The shape of `initial_model` is its own. Received: model.{name}={value}, where it has "
                f"{known.get(name, 'no such field')}. Leave it out."
            )
    return model.model_dump() | shape | {"options": options}


# Download the remote inputs of a run other than its text.


def fetch_inputs(config: PipelineConfig) -> PipelineConfig:
    """Download the tables and the teacher of a configuration, and return it with their local paths.

    A teacher that is given brings its tokenizer: it is `vocabulary.file` unless that names another file.

    Raises:
        FileNotFoundError, OSError, ValueError: as for `stores.fetching.fetch`, or the teacher is damaged.
    """
    config = fetch_tables(config)
    if config.distillation is None or not (own := config.distillation.teacher):
        return config
    folder = fetch(own).absolute()
    settings: dict[str, Any] = {"distillation": config.distillation.model_copy(update={"teacher": str(folder)})}
    if config.vocabulary.file is None:
        check_initial_model(folder)
        file = find_tokenizer_file(folder)
        vocabulary = {"file": str(file), "cased": find_case(file, None)}
        settings["vocabulary"] = config.vocabulary.model_copy(update=vocabulary)
    return config.model_copy(update=settings)
