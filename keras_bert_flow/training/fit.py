"""Check that settings fit the encoder: its family the objective, its shape and tokenizer the training."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from keras_bert_flow.config.finetuning import ALL, HEADLESS, kind_of
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.pretraining import ModelConfig
from keras_bert_flow.conversion.adapters import check_whole
from keras_bert_flow.conversion.directory import check_classifier, check_model_directory
from keras_bert_flow.layers.shape import EncoderShape, check_precision, check_scan
from keras_bert_flow.models.families.family import find_family
from keras_bert_flow.models.sizes import check_teacher, resolve_shape
from keras_bert_flow.text.objectives.objective import find_objective
from keras_bert_flow.text.tokenizers.files import find_difference
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer


def check_objective(name: str, family: str, bag_of_words: float, is_packed: bool = False) -> None:
    """Raise ValueError if an encoder family has no model for an objective, or the objective no bag-of-words loss.

    Args:
        name: of the objective.
        family: of the encoder.
        bag_of_words: weight of that loss.
        is_packed: whether records hold several texts.
    """
    objective = find_objective(name)
    if objective.has_pairs and not find_family(family).has_sentence_task:
        raise ValueError(
            f"`records.objective` must have no sentence task for the family {family}. Received: {name}. Use mlm."
        )
    if objective.families and family not in objective.families:
        raise ValueError(
            f"`model.family` must be one of {', '.join(objective.families)} for the objective {name}. Received: "
            f"{family}."
        )
    if bag_of_words and not objective.has_words_head:
        raise ValueError(
            f"`pretraining.bag_of_words` must be 0 with the objective {name}. Received: {bag_of_words}. Leave it "
            "out, or use mlm."
        )
    if bag_of_words and is_packed:
        raise ValueError(
            "`pretraining.bag_of_words` must be 0 with packed records, whose rows are of several texts. Received: "
            f"{bag_of_words}. Leave it out, or records.packing."
        )


def check_precisions(config: PipelineConfig) -> None:
    """Raise ValueError if the encoder overflows in the precision of a phase of pre-training."""
    shape = resolve_shape(config.model, config.vocabulary.size)
    for phase in config.phases:
        check_precision(shape, phase.pretraining.precision)


def check_scanned(config: PipelineConfig) -> None:
    """Raise ValueError if pre-training scans layers on another backend than JAX, or layers that cannot be scanned."""
    if config.pretraining.scan_layers:
        check_scan(resolve_shape(config.model, config.vocabulary.size), config.backend)


def check_padding(model: ModelConfig, tokenizer: Tokenizer) -> None:
    """Raise ValueError if `pad_token_id`, after which positions start, is not that of the tokenizer."""
    found = getattr(resolve_shape(model, tokenizer.vocabulary_size), "pad_token_id", tokenizer.pad_id)
    if found != tokenizer.pad_id:
        raise ValueError(
            f"`model.options.pad_token_id` must be that of the tokenizer. Received: {found}, a tokenizer with "
            f"{tokenizer.pad_id}. Set it to {tokenizer.pad_id}."
        )


# Check the shape of the initial model of continued pre-training.

# Fields that may differ: rates are those of the run, and a checkpoint may have more segments and rows of
# embeddings than are used.
FREE = {
    "num_segments",
    "dropout_rate",
    "attention_dropout_rate",
    "layer_norm_epsilon",
    "initializer_range",
    "mlm_hidden_act",
    "mlm_layer_norm_epsilon",
    "num_pieces",
}


def check_shape(found: Mapping[str, Any], shape: ModelConfig, folder: Path) -> None:
    """Raise ValueError unless a model has the configured shape.

    Args:
        found: constructor arguments of its encoder.
        shape: the configured shape.
        folder: the model directory, for the message.
    """
    wanted = {"family": shape.family} | asdict(resolve_shape(shape, found["vocabulary_size"]))
    others = [
        f"{name}={found.get(name)}, not {value}"
        for name, value in wanted.items()
        if name not in FREE and found.get(name) != value
    ]
    if others:
        raise ValueError(
            f"The initial model must have the shape that the configuration says. Received: {folder}, with "
            f"{'; '.join(others)}. Set these in the section `model`."
        )


# Check the settings of fine-tuning.


def check_task_length(sequence_length: int, max_positions: int) -> None:
    """Raise ValueError unless a model has enough positions for `sequence_length`."""
    if sequence_length > max_positions:
        raise ValueError(
            f"Examples must fit the model's {max_positions} positions. Received: finetuning.sequence_length="
            f"{sequence_length}. Lower it, or choose another model."
        )


def check_task_teacher(config: PipelineConfig, student: EncoderShape, tokenizer: Tokenizer | None = None) -> None:
    """Check that the teacher of a fine-tuning, if any, fits the student.

    Args:
        student: shape of the encoder that is fine-tuned; the size of its vocabulary does not count.
        tokenizer: of that model; None if there is none yet.
    Raises:
        FileNotFoundError, ValueError: the teacher is missing or damaged, or does not fit.
    """
    settings = config.finetuning
    if settings.teacher is None:
        return
    check_whole(Path(settings.teacher))
    directory = check_model_directory(Path(settings.teacher))
    check_classifier(directory)
    values, weight = dict(directory.settings), float(settings.layer_epochs > 0)
    teacher = find_family(values.pop("family")).shape(**values)
    student = replace(student, vocabulary_size=teacher.vocabulary_size)  # tokenizers are compared below, if there are
    check_teacher(student, teacher, 0.0, weight, weight, "finetuning")
    check_task_length(settings.sequence_length, teacher.max_positions)
    if tokenizer is not None and (difference := find_difference(tokenizer, directory.tokenizer)) is not None:
        raise ValueError(
            f"A teacher must have the tokenizer of its student. Received: {settings.teacher}, with {difference}. "
            "Choose another teacher."
        )


def check_trained_part(config: PipelineConfig, shape: EncoderShape) -> None:
    """Raise ValueError unless `precision`, `frozen_layers` and `lora_rank` fit the model and leave weights to train.

    Args:
        shape: of the encoder. The layers of ALBERT share blocks, so it has fewer blocks than layers.
    """
    check_precision(shape, config.finetuning.precision)
    frozen, rank = config.finetuning.frozen_layers, config.finetuning.lora_rank
    if isinstance(frozen, int) and frozen > shape.num_blocks:
        raise ValueError(
            f"`frozen_layers` must be at most {shape.num_blocks}, the model's number of blocks. Received: "
            f"finetuning.frozen_layers={frozen}. Lower it, or use {ALL!r}."
        )
    kind = kind_of(config.task)
    if frozen in (ALL, shape.num_blocks) and kind in HEADLESS:
        raise ValueError(
            f"`frozen_layers` must leave something to train: a task of kind {kind} has no head. Received: "
            f"finetuning.frozen_layers={frozen}. Lower it, or use lora_rank."
        )
    if rank is not None and rank > shape.hidden_dim:
        raise ValueError(
            f"`lora_rank` must be at most the width of the model, {shape.hidden_dim}. Received: "
            f"finetuning.lora_rank={rank}. Lower it, or leave it out to train all weights."
        )
