"""Sections `pretraining` and `second_phase`."""

from typing import Any, Literal

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
    check_schedule,
    fit_warmup,
)
from keras_bert_flow.config.settings import Settings


class PretrainingConfig(Settings):
    """How the model learns from records. Defaults: Devlin et al. 2019, appendix A.2."""

    sequence_length: int | None = Field(
        None,
        ge=8,
        description="Tokens per sequence; longer records of the objective `mlm` are split, and `bag_of_words` then "
        "holds the rest of the document as well. Default: that of the records.",
    )
    masking: Literal["static", "dynamic"] = Field(
        "static", description="Use the masks of the records, or draw new ones in every epoch (RoBERTa)."
    )
    masked_fraction: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Fraction of an instance's tokens to mask, with `masking: dynamic`. Default: that of the records.",
    )
    batch_size: BatchSize = 256
    accumulate_batches: AccumulateBatches = 1
    total_steps: int = Field(1_000_000, ge=1, le=MOST_STEPS, description="Optimizer steps.")
    warmup_steps: WarmupSteps = 10_000
    minutes: float | None = Field(
        None,
        gt=0,
        description="Most minutes of the stage: a machine that is too slow for all steps takes fewer, and the learning "
        "rate still decays to its end. Default: all steps are taken, however long it takes.",
    )
    token_embeddings: Literal["random", "co_occurrence"] = Field(
        "random",
        description="Initial token embeddings of a new model: random, or from co-occurrence counts of tokens.",
    )
    output_bias: Literal["zeros", "unigram"] = Field(
        "zeros", description="Initial bias of a new masked-LM head: 0, or the log token frequencies."
    )
    bag_of_words: float = Field(
        0.0,
        ge=0,
        description="Weight of a further loss: the mean of the last hidden states predicts the masked tokens, whatever "
        "their places, rare ones first. 0: none.",
    )
    generator_size: float = Field(
        0.25, gt=0, le=1, description="Width of the generator as a fraction of the encoder's, with the objective `rtd`."
    )
    replaced_token_weight: float = Field(
        50.0,
        gt=0,
        description="Weight of the replaced-token loss, with the objective `rtd`; the generator's loss has weight 1.",
    )
    optimizer: Literal["adamw", "bert_adam", "lamb", "muon"] = Field(
        "adamw",
        description="AdamW; `bert_adam`, the original's, without bias correction; `lamb`, for large batches; `muon` "
        "for the matrices of the encoder, AdamW for the rest.",
    )
    learning_rate: LearningRate = 1e-4
    matrix_learning_rate: float = Field(
        0.02, gt=0, description="Peak learning rate of the encoder's matrices, with `optimizer: muon`."
    )
    token_embedding_learning_rate: float | None = Field(
        None,
        gt=0,
        description="Peak learning rate of the token embeddings, which are tied to the output projection. Default: "
        "`learning_rate`.",
    )
    decay: Decay = "linear"
    decay_from: DecayFrom = "warmup"
    weight_decay: WeightDecay = 0.01
    clip_norm: ClipNorm = 1.0
    precision: Precision = "float32"
    rematerialise: bool = Field(
        False, description="Recompute each encoder block in the backward pass: less memory, more time, the same result."
    )
    non_finite: Literal["stop", "skip"] = Field(
        "stop", description="On NaN or infinity in a loss or gradient: stop the run, or skip the step."
    )
    max_skipped_steps: int = Field(
        10,
        ge=1,
        description="Maximum number of consecutive steps to skip with `non_finite: skip`; one more stops the run.",
    )
    log_every_steps: int = Field(100, ge=1, description="Steps between two lines of log.jsonl.")
    tensorboard: bool = Field(True, description="Write the numbers of log.jsonl to a TensorBoard event file as well.")
    evaluate_every_steps: int = Field(1000, ge=1, description="Steps between two evaluations on held-out records.")
    evaluate_instances: int = Field(1000, ge=1, description="Maximum number of held-out instances per evaluation.")
    checkpoint_every_steps: int = Field(1000, ge=1, description="Steps between two checkpoints.")
    keep_checkpoints: int = Field(2, ge=1, description="Number of newest checkpoints to keep.")
    keep_best: bool = Field(
        True,
        description="Also keep the checkpoint with the lowest held-out masked-LM loss until the run is published.",
    )
    publish: Literal["last", "best"] = Field(
        "last", description="Model to publish: that of the last step, or of `keep_best`."
    )
    peak_flops: float | None = Field(
        None,
        gt=0,
        description="Peak floating-point operations per second of the device; the log then contains `utilisation`, a "
        "fraction of it.",
    )

    @model_validator(mode="before")
    @classmethod
    def _fit_warmup(cls, values: Any) -> Any:
        return fit_warmup(values, cls.model_fields["warmup_steps"].default)

    @model_validator(mode="after")
    def _check_durations(self):
        check_schedule(self.total_steps, self.warmup_steps, self.batch_size, self.accumulate_batches)
        return self

    @model_validator(mode="after")
    def _check_masks(self):
        if self.masked_fraction is not None and self.masking == "static":
            raise ValueError(
                "`masked_fraction` needs dynamic masking. Received: "
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

    sequence_length: int = Field(512, ge=8, description="Tokens per instance, including [CLS] and [SEP].")
    max_predictions: int = Field(77, ge=1, description="Maximum number of masked tokens per instance.")
    duplication: int | None = Field(
        None, ge=1, description="Number of times each document is used. Default: that of `records`."
    )
    batch_size: BatchSize = 256
    accumulate_batches: AccumulateBatches = 1
    total_steps: int = Field(100_000, ge=1, le=MOST_STEPS, description="Optimizer steps, counted from 0.")
    warmup_steps: WarmupSteps = 1_000
    learning_rate: LearningRate = 1e-4

    @model_validator(mode="before")
    @classmethod
    def _fit_warmup(cls, values: Any) -> Any:
        return fit_warmup(values, cls.model_fields["warmup_steps"].default)

    @model_validator(mode="after")
    def _check_durations(self):
        check_schedule(self.total_steps, self.warmup_steps, self.batch_size, self.accumulate_batches)
        return self
