"""Section `distillation`."""

from typing import Any, Literal

from pydantic import Field, model_validator

from keras_bert_flow.config.limits import MOST_STEPS
from keras_bert_flow.config.model import ModelConfig
from keras_bert_flow.config.optimization import (
    AccumulateBatches,
    BatchSize,
    LearningRate,
    WarmupSteps,
    check_schedule,
    fit_warmup,
)
from keras_bert_flow.config.settings import Settings


class DistillationConfig(Settings):
    """A smaller model distilled from the pre-trained one; what is not set here is as in `pretraining`.

    Defaults: Sanh et al. 2019 (DistilBERT), section 3, and the weights of the losses in their training script.
    """

    teacher: str | None = Field(
        None,
        description="Model directory with a masked-LM head and the vocabulary of the records. Default: the model that "
        "this configuration pre-trains.",
    )
    student: ModelConfig = Field(
        default_factory=lambda: ModelConfig(family="distilbert", num_layers=6), description="The shape of the student."
    )
    start: Literal["teacher", "random"] = Field(
        "teacher", description="Initial weights of the student: evenly spaced layers of the teacher, or random."
    )
    temperature: float = Field(
        2.0, gt=0, description="Temperature of the soft targets: both models' logits are divided by it."
    )
    soft_target_weight: float = Field(5.0, ge=0, description="Weight of the loss against the teacher's predictions.")
    masked_lm_weight: float = Field(2.0, ge=0, description="Weight of the masked-LM loss.")
    hidden_state_weight: float = Field(
        1.0,
        ge=0,
        description="Weight of the cosine distance between the last hidden states of teacher and student, which must "
        "be equally wide.",
    )
    batch_size: BatchSize = 256
    accumulate_batches: AccumulateBatches = 1
    total_steps: int = Field(100_000, ge=1, le=MOST_STEPS, description="Optimizer steps.")
    warmup_steps: WarmupSteps = 5_000
    learning_rate: LearningRate = 5e-4

    @model_validator(mode="before")
    @classmethod
    def _fit_warmup(cls, values: Any) -> Any:
        return fit_warmup(values, cls.model_fields["warmup_steps"].default)

    @model_validator(mode="after")
    def _check_durations(self):
        check_schedule(self.total_steps, self.warmup_steps, self.batch_size, self.accumulate_batches)
        return self

    @model_validator(mode="after")
    def _check_weights(self):
        if not self.soft_target_weight + self.masked_lm_weight + self.hidden_state_weight:
            raise ValueError(
                "A student must learn from something. Received: soft_target_weight, masked_lm_weight and "
                "hidden_state_weight of 0. Set one above 0."
            )
        return self
