"""Sections `model`, `pretraining`, `second_phase`, `distillation` and `distribution`, and what fine-tuning shares."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from keras_bert_flow.config.limits import (
    MOST_HEADS,
    MOST_LAYERS,
    MOST_POSITIONS,
    MOST_SEQUENCES,
    MOST_STEPS,
    MOST_UNITS,
    MOST_WEIGHT,
    Settings,
)

# Section `model`.


class ModelConfig(Settings):
    """The shape of the network."""

    family: str = Field("bert", description="Encoder family; see docs/family.md.")
    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = Field("base", description="A published size.")
    num_layers: int | None = Field(
        None, ge=1, le=MOST_LAYERS, description="Number of encoder blocks. Default: that of `size`."
    )
    hidden_dim: int | None = Field(
        None, ge=1, le=MOST_UNITS, description="Width of the hidden states. Default: that of `size`."
    )
    num_heads: int | None = Field(
        None, ge=1, le=MOST_HEADS, description="Number of attention heads. Default: that of `size`."
    )
    intermediate_dim: int | None = Field(
        None, ge=1, le=4 * MOST_UNITS, description="Width of the feed-forward layer. Default: that of `size`."
    )
    max_positions: int = Field(
        512, ge=8, le=MOST_POSITIONS, description="Maximum sequence length of the model, in tokens."
    )
    hidden_act: Literal["gelu", "gelu_tanh", "relu", "silu"] = Field(
        "gelu", description="Exact GELU (erf), its tanh approximation, ReLU, which MobileBERT has, or SiLU."
    )
    dropout_rate: float = Field(0.1, ge=0, lt=1, description="Dropout rate after embeddings and sublayers.")
    attention_dropout_rate: float = Field(0.1, ge=0, lt=1, description="Dropout rate of the attention probabilities.")
    options: dict[str, int | float | str | bool] = Field(
        default_factory=dict,
        description="Further fields of the family's shape, such as `embedding_dim` of ALBERT.",
    )


def _as_bool(value: Any) -> Any:
    return {"blocks": True, "nothing": False}.get(value, value) if isinstance(value, str) else value


# `blocks` and `nothing` are other words for true and false, which stand in the keys of results.
Rematerialise = Annotated[bool | Literal["attention"], BeforeValidator(_as_bool)]

# Settings that pre-training and fine-tuning have in common: types that carry their limits and descriptions.

AUTO = "auto"

BatchSize = Annotated[int, Field(ge=1, le=MOST_SEQUENCES, description="Sequences per step.")]
AccumulateBatches = Annotated[
    int,
    Field(ge=1, description="Number of parts whose gradients are accumulated to one step of `batch_size` sequences."),
]
WarmupSteps = Annotated[
    int,
    Field(
        ge=0,
        description="Number of steps in which the learning rate rises linearly from 0. Default with fewer steps than "
        "that: a tenth of them.",
    ),
]
LearningRate = Annotated[float, Field(gt=0, description="Peak learning rate.")]
Decay = Annotated[
    Literal["linear", "cosine", "trapezoid", "trapezoid_sqrt", "constant"],
    Field(
        description="How the learning rate decays to 0 at the last step; `trapezoid`: over the last fifth of the "
        "steps; `trapezoid_sqrt`: there as 1 - √x, faster at first; `constant`: no decay."
    ),
]
DecayFrom = Annotated[
    Literal["warmup", "start"],
    Field(description="Whether the decay starts at the end of the warm-up, or at step 0 as in the original."),
]
WeightDecay = Annotated[
    float, Field(ge=0, description="Decoupled weight decay; biases and layer norms are never decayed.")
]
ClipNorm = Annotated[float, Field(gt=0, description="Maximum global norm of the gradient.")]
Precision = Annotated[
    Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"],
    Field(
        description="Arithmetic; weights, softmax, layer norms and losses stay float32. `auto`: mixed_bfloat16 if "
        "this machine trains faster in it, else float32."
    ),
]


def check_equal_parts(batch_size: int, accumulate_batches: int) -> None:
    """Raise ValueError unless a batch divides into equal parts."""
    if batch_size % accumulate_batches:
        raise ValueError(
            "`batch_size` must be a multiple of `accumulate_batches`. Received: "
            f"batch_size={batch_size}, accumulate_batches={accumulate_batches}"
        )


def check_at_most(name: str, value: int, limit_name: str, limit: int, remedy: str = "") -> None:
    """Raise ValueError for a setting above another one."""
    if value > limit:
        received = f"{name}={value}, {limit_name}={limit}"
        raise ValueError(f"`{name}` must be at most `{limit_name}`. Received: {received}. {remedy}".rstrip())


def fit_warmup(cls: Any, values: Any) -> Any:
    """Return the values of a section, with a warm-up that fits its steps if they are few and none is given.

    Args:
        cls: the section, whose default is the warm-up of a long training.
    """
    if not isinstance(values, dict) or "warmup_steps" in values:
        return values
    steps = values.get("total_steps")
    if isinstance(steps, int | float) and 0 < steps < cls.model_fields["warmup_steps"].default:
        return values | {"warmup_steps": int(steps // 10)}
    return values


def check_schedule(section: Any) -> Any:
    """Raise ValueError for a warm-up longer than the run, and for batches that do not divide into equal parts."""
    remedy = "Set warmup_steps as well, or leave it out of the configuration: then it is a tenth."
    check_at_most("warmup_steps", section.warmup_steps, "total_steps", section.total_steps, remedy)
    check_equal_parts(section.batch_size, section.accumulate_batches)
    return section


# Section `distribution`.


class DistributionConfig(Settings):
    """How pre-training is distributed over devices; it changes results by rounding only, so it is part of no key."""

    kind: Literal["auto", "single", "data_parallel", "model_parallel", "tpu"] = Field(
        "auto",
        description="`data_parallel`: each device computes rows of a batch; `model_parallel`: several share a copy "
        "of the model (jax); `tpu`: data_parallel, refused if there is none; `auto`: by the devices that the process "
        "finds.",
    )
    devices: int | None = Field(
        None,
        ge=1,
        description="Number of devices of all processes together. Default: all. With torch each process has one.",
    )
    model_parallel: int | None = Field(
        None, ge=2, description="Devices that share one copy of the model, for `kind: model_parallel`."
    )

    @model_validator(mode="after")
    def _check_model_parallel(self):
        if (self.kind == "model_parallel") != (self.model_parallel is not None):
            raise ValueError(
                "`kind: model_parallel` and `model_parallel`, the devices of one copy, go together. Received: "
                f"kind={self.kind}, model_parallel={self.model_parallel}"
            )
        return self


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
    masked_fraction_end: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Fraction at the last step, with `masking: dynamic`: from `masked_fraction` it changes linearly. "
        "Held-out losses are those of the masks of the records. Default: it stays as it is.",
    )
    masked_fraction_least: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="Masked diffusion, with `masking: dynamic`: each sequence draws its fraction uniformly from this "
        "one to `masked_fraction`, all chosen tokens become `[MASK]`, and each sequence weighs as its length. Default: "
        "one fraction for all.",
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
        le=MOST_WEIGHT,
        description="Weight of a further loss: the mean of the last hidden states predicts the masked tokens, whatever "
        "their places, rare ones first. 0: none.",
    )
    generator_size: float = Field(
        0.25, gt=0, le=1, description="Width of the generator as a fraction of the encoder's, with the objective `rtd`."
    )
    replaced_token_weight: float = Field(
        50.0,
        gt=0,
        le=MOST_WEIGHT,
        description="Weight of the replaced-token loss, with the objective `rtd`; the generator's loss has weight 1.",
    )
    span_boundary_weight: float = Field(
        1.0,
        ge=0,
        le=MOST_WEIGHT,
        description="Weight of the span boundary loss, with the objective `mlm_sbo`; the masked-LM loss has weight 1.",
    )
    optimizer: Literal["adamw", "bert_adam", "lamb", "muon", "stable_adamw"] = Field(
        "adamw",
        description="AdamW; `bert_adam`, the original's, without bias correction; `lamb`, for large batches; `muon` "
        "for the matrices of the encoder, AdamW for the rest; `stable_adamw`, AdamW whose step is smaller where "
        "gradients are suddenly larger.",
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
    rematerialise: Rematerialise = Field(
        False,
        description="Recompute in the backward pass: less memory, more time, the same result. `blocks` (true): each "
        "encoder block; `attention`: what grows with the square of the length; `nothing` (false).",
    )
    scan_layers: bool = Field(
        False,
        description="Compile one encoder block and run it as a loop over the stacked weights of all: a smaller "
        "program, on jax alone. It needs blocks of one kind that share no weights.",
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
    save_at_words: tuple[int, ...] = Field(
        (),
        description="Numbers of words read, at the step after which the model is also saved, in `words/NUMBER/`. Words "
        "are counted again in every epoch; their mean number per sequence is that of a sample.",
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

    _fit_warmup = model_validator(mode="before")(fit_warmup)
    _check_schedule = model_validator(mode="after")(check_schedule)

    @model_validator(mode="after")
    def _check_masks_and_best(self):
        if self.masked_fraction is not None and self.masking == "static":
            raise ValueError(
                "`masked_fraction` needs dynamic masking. Received: "
                f"masked_fraction={self.masked_fraction}, masking=static. Set masking to dynamic, or the share of "
                "static masks in records.masked_fraction."
            )
        if [*self.save_at_words] != sorted({number for number in self.save_at_words if number > 0}):
            raise ValueError(
                "`save_at_words` must be numbers above 0 in ascending order. Received: "
                f"{[*self.save_at_words]}. Try [1000000, 10000000]."
            )
        if self.masked_fraction_end is not None and (self.masked_fraction is None or self.minutes is not None):
            raise ValueError(
                "`masked_fraction_end` must have a `masked_fraction` to begin with, and all of its steps. Received: "
                f"masked_fraction={self.masked_fraction}, minutes={self.minutes}. Set masked_fraction, and leave out "
                "minutes."
            )
        least, most, end = self.masked_fraction_least, self.masked_fraction, self.masked_fraction_end
        if least is not None and (most is None or least >= most or end is not None):
            raise ValueError(
                "`masked_fraction_least` must be below a `masked_fraction` that does not change. Received: "
                f"masked_fraction_least={least}, masked_fraction={most}, masked_fraction_end={end}. "
                "Set masked_fraction, such as 0.9, and leave out masked_fraction_end."
            )
        if self.publish == "best" and not self.keep_best:
            raise ValueError(
                "`publish: best` must have the best checkpoint kept. Received: keep_best=False. Set keep_best to true."
            )
        return self

    @property
    def most_masked(self) -> float | None:
        """The largest fraction of an instance's tokens that dynamic masks hide; None: that of the records."""
        fractions = self.masked_fraction, self.masked_fraction_end
        return max((fraction for fraction in fractions if fraction is not None), default=None)


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

    _fit_warmup = model_validator(mode="before")(fit_warmup)
    _check_schedule = model_validator(mode="after")(check_schedule)


# Section `distillation`.


class DistillationConfig(Settings):
    """A smaller model distilled from the pre-trained one; what is not set here is as in `pretraining`.

    Defaults: Sanh et al. 2019 (DistilBERT), section 3, and the weights of the losses in their training script. TinyBERT
    (Jiao et al. 2020, section 3.1) compares layers alone: both weights of these at 1, the other three at 0. MobileBERT
    (Sun et al. 2020, section 3.4) compares feature maps and attention maps before it learns predictions.
    """

    teacher: str | None = Field(
        None,
        description="Model directory with a masked-LM head and the vocabulary of the records. Default: the model that "
        "this configuration pre-trains.",
    )
    student: ModelConfig = Field(
        default_factory=lambda: ModelConfig(family="distilbert", num_layers=6), description="The shape of the student."
    )
    start: Literal["teacher", "embeddings", "random"] = Field(
        "teacher",
        description="Initial weights of the student: evenly spaced layers of the teacher, with its embeddings and its "
        "masked-LM head; these two without the layers; or random.",
    )
    temperature: float = Field(
        2.0, gt=0, description="Temperature of the soft targets: both models' logits are divided by it."
    )
    soft_target_weight: float = Field(
        5.0, ge=0, le=MOST_WEIGHT, description="Weight of the loss against the teacher's predictions."
    )
    masked_lm_weight: float = Field(2.0, ge=0, le=MOST_WEIGHT, description="Weight of the masked-LM loss.")
    hidden_state_weight: float = Field(
        1.0,
        ge=0,
        le=MOST_WEIGHT,
        description="Weight of the cosine distance between the last hidden states of teacher and student, which must "
        "be equally wide.",
    )
    attention_score_weight: float = Field(
        0.0,
        ge=0,
        le=MOST_WEIGHT,
        description="Weight of the squared error of the attention scores before the softmax, summed over the student's "
        "layers. The layers of the teacher are evenly spaced, and both have the same number of heads.",
    )
    layer_state_weight: float = Field(
        0.0,
        ge=0,
        le=MOST_WEIGHT,
        description="Weight of the squared error of the embeddings and the hidden states of the same layers, after one "
        "projection to the width of the teacher.",
    )
    feature_map_weight: float = Field(
        0.0,
        ge=0,
        le=MOST_WEIGHT,
        description="Weight of the squared error of the outputs of each layer, mean over layers and real tokens. Both "
        "models have the same number of layers and the same width between them.",
    )
    attention_map_weight: float = Field(
        0.0,
        ge=0,
        le=MOST_WEIGHT,
        description="Weight of the divergence of the attention probabilities of each layer from the teacher's, mean "
        "over layers, heads and real tokens. Both models have the same number of layers and of heads.",
    )
    transfer: Literal["auxiliary", "joint", "progressive"] = Field(
        "auxiliary",
        description="When the losses of feature maps and attention maps are learnt: with the others in all steps; "
        "before these, by all layers together; or before these, layer by layer from the lowest, while all other "
        "weights stay as they are.",
    )
    layer_transfer_steps: int = Field(
        0,
        ge=0,
        le=MOST_STEPS,
        description="Steps of `total_steps` for each layer, with `transfer: joint` or `progressive`.",
    )
    batch_size: BatchSize = 256
    accumulate_batches: AccumulateBatches = 1
    total_steps: int = Field(100_000, ge=1, le=MOST_STEPS, description="Optimizer steps.")
    warmup_steps: WarmupSteps = 5_000
    learning_rate: LearningRate = 5e-4

    _fit_warmup = model_validator(mode="before")(fit_warmup)
    _check_schedule = model_validator(mode="after")(check_schedule)

    @model_validator(mode="after")
    def _check_weights(self):
        if not (self.compares_layers or self.soft_target_weight + self.masked_lm_weight + self.hidden_state_weight):
            raise ValueError(
                "A student must learn from something. Received: soft_target_weight, masked_lm_weight and "
                "hidden_state_weight of 0, without the weight of another loss. Set one above 0."
            )
        return self

    @model_validator(mode="after")
    def _check_transfer(self):
        is_before = self.transfer != "auxiliary"
        if is_before != (self.layer_transfer_steps > 0):
            raise ValueError(
                "`transfer: joint` or `progressive` and `layer_transfer_steps` go together. Received: "
                f"transfer={self.transfer}, layer_transfer_steps={self.layer_transfer_steps}. Set both, or neither."
            )
        maps = self.feature_map_weight + self.attention_map_weight
        others = self.soft_target_weight + self.masked_lm_weight + self.hidden_state_weight
        others += self.attention_score_weight + self.layer_state_weight
        if is_before and not (maps and others):
            raise ValueError(
                f"`transfer: {self.transfer}` must have losses of maps to begin with, and others to go on with. "
                f"Received: feature_map_weight={self.feature_map_weight}, "
                f"attention_map_weight={self.attention_map_weight}, and a sum of the other weights of {others}. Set "
                "one of each above 0."
            )
        return self

    @property
    def compares_layers(self) -> bool:
        """Whether the layers of the student are compared with those of the teacher."""
        maps = self.feature_map_weight + self.attention_map_weight
        return self.attention_score_weight + self.layer_state_weight + maps > 0

    @property
    def has_head(self) -> bool:
        """Whether the student has a masked-LM head: not if layers alone are compared, which trains no head."""
        return not self.compares_layers or self.soft_target_weight + self.masked_lm_weight > 0
