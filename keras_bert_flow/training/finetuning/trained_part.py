"""Choose which weights of a model fine-tuning trains: all, LoRA, or the upper layers."""

import math
from typing import Any

from keras_bert_flow.config.finetuning import ALL, HEADLESS, FinetuningConfig, kind_of
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.layers.shape import EncoderShape

COSTS = ("trained_parameters", "parameters", "peak_bytes")  # cost of a run in `run.json`


def check_trained_part(config: PipelineConfig, shape: EncoderShape) -> None:
    """Raise ValueError unless `frozen_layers` and `lora_rank` fit the model and leave weights to train.

    Args:
        shape: of the encoder. The layers of ALBERT share blocks, so it has fewer blocks than layers.
    """
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


def choose_trained_part(model: Any, settings: FinetuningConfig) -> None:
    """Freeze layers or add LoRA according to the settings; call it before the model is compiled.

    The pooler is trained with the head: in some families it is part of the head, in others it may be new.
    """
    backbone = model.backbone
    if settings.lora_rank is not None:
        backbone.enable_lora(settings.lora_rank, settings.lora_alpha, settings.lora_targets)
    elif settings.frozen_layers is not None:
        frozen = settings.frozen_layers
        backbone.freeze_lowest(len(backbone.blocks) if frozen == ALL else frozen)


def count_parameters(model: Any) -> dict[str, int]:
    """Return the number of parameters of a model, LoRA included, and of those that are trained."""
    listed = {"trained_parameters": model.trainable_variables, "parameters": model.weights}
    return {name: sum(math.prod(weight.shape) for weight in weights) for name, weights in listed.items()}
