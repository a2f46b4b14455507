"""Sections `pretraining` and `second_phase`."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from keras_bert_flow.config.limits import MOST_STEPS
from keras_bert_flow.config.optimization import (
    AccumulateBatches,
    BatchSize,
    ClipNorm,
    Decay,
    DecayFrom,
    LearningRate,
    Precision,
    WarmupSteps,
    WeightDecay,
    check_at_most,
    check_equal_parts,
)
from keras_bert_flow.config.settings import Settings

if TYPE_CHECKING:
    from keras_bert_flow.config.distillation import DistillationConfig


class PretrainingConfig(Settings):
    """How the model learns from records. Defaults: Devlin et al. 2019, appendix A.2."""

    sequence_length: int | None = Field(
        None,
        ge=8,
        description="Tokens of a sequence; longer records of the objective `mlm` are cut, and `bag_of_words` then "
        "holds the rest of the document as well. Default: that of the records.",
    )
    masking: Literal["static", "dynamic"] = Field(
        "static", description="Masks as they are in the records, or drawn anew for each pass over them (RoBERTa)."
    )
    masked_fraction: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Share of an instance's tokens to mask, with `masking: dynamic`. Default: that of the records.",
    )
    batch_size: BatchSize = 256
    accumulate_batches: AccumulateBatches = 1
    total_steps: int = Field(1_000_000, ge=1, le=MOST_STEPS, description="Optimizer steps.")
    warmup_steps: WarmupSteps = 10_000
    token_embeddings: Literal["random", "co_occurrence"] = Field(
        "random",
        description="How token embeddings of a new model start: at random, or from which tokens stand near each other.",
    )
    output_bias: Literal["zeros", "unigram"] = Field(
        "zeros", description="How the bias of a new masked-LM head starts: at 0, or at log token frequencies."
    )
    bag_of_words: float = Field(
        0.0,
        ge=0,
        description="Weight of a further loss: the mean of the last hidden states predicts the masked tokens, whatever "
        "their places, rare ones first. 0: none.",
    )
    generator_size: float = Field(
        0.25, gt=0, le=1, description="Width of the generator as a share of the encoder's, with the objective `rtd`."
    )
    replaced_token_weight: float = Field(
        50.0,
        gt=0,
        description="Weight of the loss of replaced tokens, with the objective `rtd`; the generator's has 1.",
    )
    optimizer: Literal["adamw", "bert_adam", "lamb", "muon"] = Field(
        "adamw",
        description="AdamW; `bert_adam`, the original's, without bias correction; `lamb`, for large batches; `muon` "
        "for the matrices of the encoder, AdamW for the rest.",
    )
    learning_rate: LearningRate = 1e-4
    matrix_learning_rate: float = Field(
        0.02, gt=0, description="Highest learning rate of the matrices of the encoder, with `optimizer: muon`."
    )
    token_embedding_learning_rate: float | None = Field(
        None,
        gt=0,
        description="Highest learning rate of the token embeddings, which are the output projection as well. Default: "
        "`learning_rate`.",
    )
    decay: Decay = "linear"
    decay_from: DecayFrom = "warmup"
    weight_decay: WeightDecay = 0.01
    clip_norm: ClipNorm = 1.0
    precision: Precision = "float32"
    rematerialise: bool = Field(
        False, description="Compute each encoder block again in the backward pass: less memory, more time, same result."
    )
    non_finite: Literal["stop", "skip"] = Field(
        "stop", description="At NaN or infinity in a loss or gradient: end the run, or leave the step out."
    )
    max_skipped_steps: int = Field(
        10, ge=1, description="Most steps to leave out in a row with `non_finite: skip`; one more ends the run."
    )
    log_every_steps: int = Field(100, ge=1, description="Steps between two lines of log.jsonl.")
    tensorboard: bool = Field(True, description="Write the numbers of log.jsonl to a TensorBoard event file as well.")
    evaluate_every_steps: int = Field(1000, ge=1, description="Steps between two evaluations on held-out records.")
    evaluate_instances: int = Field(1000, ge=1, description="Held-out instances of an evaluation, at most.")
    checkpoint_every_steps: int = Field(1000, ge=1, description="Steps between two checkpoints.")
    keep_checkpoints: int = Field(2, ge=1, description="Newest checkpoints to keep.")
    keep_best: bool = Field(
        True,
        description="Keep the checkpoint of the lowest held-out masked-LM loss as well, until the run is published.",
    )
    publish: Literal["last", "best"] = Field(
        "last", description="Which model becomes the result: that of the last step, or of `keep_best`."
    )
    peak_flops: float | None = Field(
        None, gt=0, description="What the device can do, operations a second; the log then has `utilisation`, a share."
    )

    @model_validator(mode="after")
    def _check_durations(self):
        check_steps(self)
        return self

    @model_validator(mode="after")
    def _check_masks(self):
        if self.masked_fraction is not None and self.masking == "static":
            raise ValueError(
                "`masked_fraction` is for masks that are drawn anew. Received: "
                f"masked_fraction={self.masked_fraction}, masking=static. Set masking to dynamic, or the share of "
                "static masks in records.masked_fraction."
            )
        return self

    @model_validator(mode="after")
    def _check_best(self):
        if self.publish == "best" and not self.keep_best:
            raise ValueError(
                "`publish: best` must have the best checkpoint kept. Received: keep_best=False. Set keep_best to true."
            )
        return self


class SecondPhaseConfig(Settings):
    """Continued pre-training with longer sequences; what is not set here is as in `records` and `pretraining`.

    Defaults: Devlin et al. 2019, appendix A.2: a tenth of the steps at 512 tokens, for the positions beyond 128.
    """

    sequence_length: int = Field(512, ge=8, description="Tokens of an instance, [CLS] and [SEP] included.")
    max_predictions: int = Field(77, ge=1, description="Most masked tokens of an instance.")
    duplication: int | None = Field(None, ge=1, description="Times each document is used; by default as in `records`.")
    batch_size: BatchSize = 256
    accumulate_batches: AccumulateBatches = 1
    total_steps: int = Field(100_000, ge=1, le=MOST_STEPS, description="Optimizer steps, counted from 0 again.")
    warmup_steps: WarmupSteps = 1_000
    learning_rate: LearningRate = 1e-4

    @model_validator(mode="after")
    def _check_durations(self):
        check_steps(self)
        return self


def check_steps(settings: "PretrainingConfig | SecondPhaseConfig | DistillationConfig") -> None:
    """Raise ValueError for a warm-up longer than the run, and for batches that do not divide into equal parts."""
    check_at_most("warmup_steps", settings.warmup_steps, "total_steps", settings.total_steps)
    check_equal_parts(settings.batch_size, settings.accumulate_batches)
