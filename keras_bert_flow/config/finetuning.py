"""Sections `finetuning`, `evaluation` and `task`."""

import re
from dataclasses import fields
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, get_type_hints

from pydantic import Discriminator, Field, Tag, create_model, model_validator

from keras_bert_flow.config.limits import (
    BUILTIN,
    MOST_EPOCHS,
    MOST_EXAMPLES,
    MOST_SEQUENCES,
    MOST_UNITS,
    Seed,
    Settings,
)
from keras_bert_flow.config.pretraining import (
    ClipNorm,
    Decay,
    DecayFrom,
    LearningRate,
    Precision,
    WeightDecay,
    check_equal_parts,
)
from keras_bert_flow.tasks.settings import SETTINGS, TaskSettings

ALL = "all"
MERGED: Final = "merged"
ADAPTER: Final = "adapter"


class GridConfig(Settings):
    """Settings of fine-tuning to try, each with each. Defaults: Devlin et al. 2019, appendix A.3."""

    learning_rate: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (5e-5, 3e-5, 2e-5), min_length=1, description="Peak learning rates, instead of that of `finetuning`."
    )
    epochs: tuple[Annotated[int, Field(ge=1, le=MOST_EPOCHS)], ...] = Field(
        (2, 3, 4), min_length=1, description="Numbers of epochs, one run per number."
    )
    batch_size: tuple[Annotated[int, Field(ge=1, le=MOST_SEQUENCES)], ...] = Field(
        (16, 32), min_length=1, description="Examples per step."
    )

    @model_validator(mode="after")
    def _check_distinct(self):
        for name, values in self:
            if len({*values}) < len(values):
                raise ValueError(
                    f"A grid must name each value once. Received: {name}={list(values)}. Leave out the second."
                )
        return self


class FinetuningConfig(Settings):
    """How a pre-trained model is fine-tuned on a task. Defaults: Devlin et al. 2019, appendix A.3."""

    batch_size: int = Field(32, ge=1, le=MOST_SEQUENCES, description="Examples per step.")
    accumulate_batches: int | None = Field(
        None,
        ge=1,
        description="Number of parts, the shortest examples first, whose gradients are accumulated to one step. "
        "Default: 1, 2 or 4, whichever is fastest for the lengths of the table; 1 on an accelerator.",
    )
    epochs: int = Field(3, ge=1, le=MOST_EPOCHS, description="Number of epochs.")
    minutes: float | None = Field(
        None,
        gt=0,
        description="Most minutes of the stage, shared by its runs: on a machine that is too slow for all epochs, a "
        "run takes fewer steps, and the learning rate still decays to its end. Default: no limit.",
    )
    max_train_examples: int | None = Field(
        None, ge=1, le=MOST_EXAMPLES, description="Maximum number of training rows. Default: all."
    )
    train_examples: Literal["first", "random"] = Field(
        "first",
        description="Which rows `max_train_examples` takes: the first, or random ones, drawn with `seed`, for a table "
        "in some order. Of random ones, the labels are those of the whole table.",
    )
    sequence_length: int = Field(128, ge=8, description="Tokens per example; longer ones are truncated.")
    optimizer: Literal["adamw", "bert_adam", "lamb", "stable_adamw"] = Field(
        "adamw",
        description="AdamW; `bert_adam`, the original's, without bias correction; `lamb`, for large batches; "
        "`stable_adamw`, AdamW whose step is smaller where gradients are suddenly larger.",
    )
    learning_rate: LearningRate = 5e-5
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Factor by which the learning rate decays per layer below the head; 1: no decay.",
    )
    warmup_fraction: float = Field(
        0.1, ge=0, lt=1, description="Fraction of the steps in which the learning rate rises linearly from 0."
    )
    decay: Decay = "linear"
    decay_from: DecayFrom = "warmup"
    weight_decay: WeightDecay = 0.01
    clip_norm: ClipNorm = 1.0
    epsilon: float = Field(1e-8, gt=0, description="Epsilon of the optimizer, added to the denominator of the update.")
    dropout_rate: float = Field(0.1, ge=0, lt=1, description="Dropout rate of the encoder.")
    head_dropout_rate: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="Dropout rate before the head. Default: `dropout_rate`; 0 with `head_start: probe`, since a probe "
        "is fitted without dropout, and its loss rises severalfold with it.",
    )
    frozen_layers: Annotated[int, Field(ge=0)] | Literal["all"] | None = Field(
        None,
        description="Number of lowest encoder blocks to freeze, with the embeddings: 0 freezes these alone, `all` "
        "everything but the pooler and the head. Default: everything is trained.",
    )
    lora_rank: int | None = Field(
        None,
        ge=1,
        le=MOST_UNITS,
        description="Rank of LoRA: train the head, the pooler and two matrices of this rank per adapted projection "
        "of a frozen encoder. Default: no LoRA.",
    )
    lora_alpha: float = Field(8.0, gt=0, description="The LoRA update is scaled by alpha / rank; 8 as in peft.")
    lora_targets: tuple[Literal["query", "key", "value", "attention_output", "feed_forward"], ...] = Field(
        ("query", "value"),
        min_length=1,
        description="Projections of a block that LoRA adapts; `feed_forward` means both of its matrices.",
    )
    lora_output: Literal["merged", "adapter"] = Field(
        MERGED,
        description="Publish the whole model, with LoRA merged into its weights, or an adapter in peft's format, "
        "which needs the base model.",
    )
    teacher: str | None = Field(
        None,
        description="Model directory, fine-tuned on the same task, with the tokenizer of the model: the loss is the "
        "cross-entropy against its predictions instead of the labels. Default: none.",
    )
    layer_epochs: int = Field(
        0,
        ge=0,
        le=MOST_EPOCHS,
        description="Epochs before `epochs` in which the encoder learns the attention scores and the hidden states of "
        "the teacher, as in a `distillation` of layers; 10 to 20 for TinyBERT.",
    )
    new_head: bool = Field(False, description="Initialise a new head even if the model has one for this kind of task.")
    pooling: Literal["cls", "mean", "bag_of_words"] | None = Field(
        None,
        description="Input of a head for whole texts: the pooler's output for [CLS]; the mean of the last "
        "hidden states; or that mean passed through the bag-of-words head, if the model was pre-trained "
        "with `bag_of_words`. Default: that of the model's head, `cls` for a new one.",
    )
    head_start: Literal["random", "probe"] = Field(
        "random",
        description="Initial weights of a new head for whole texts: random, or those of a linear model fitted to the "
        "vectors of the training rows before the encoder is trained.",
    )
    label_words: dict[str, tuple[str, ...]] | None = Field(
        None,
        min_length=2,
        description="Class → words typical of its texts, from which a probe starts: with `pooling: bag_of_words` the "
        "model predicts how likely each is. Words of several pieces are not used. Default: only the labels are used.",
    )
    precision: Precision = "float32"
    max_widths: int = Field(
        4,
        ge=1,
        le=8,
        description="Maximum number of distinct batch widths; jax compiles a step for each.",
    )
    group_by_length: bool = Field(
        False,
        description="Group examples of similar length into batches instead of random ones: faster on JAX and "
        "TensorFlow, but with a higher variance of the gradients if labels depend on length.",
    )
    packing: bool = Field(
        False,
        description="Put the sentences of a batch into as few rows of `sequence_length` as they need, each with its "
        "own positions and attention: the same losses with less padding. For tasks that label tokens.",
    )
    patience_epochs: int | None = Field(
        None, ge=1, description="Stop a run after this many epochs without a better dev score. Default: never."
    )
    publish: Literal["last", "best"] = Field(
        "last", description="Model to publish: that of the last epoch, or of the best dev score."
    )
    calibrate: bool | Literal["bias_corrected"] = Field(
        False,
        description="Divide the head of a published classifier by the temperature with the least loss on dev, so that "
        "its probabilities agree with the shares of right answers; no answer changes. `bias_corrected` also adds a "
        "bias to each class, for a dev table with other shares of classes than the training table; answers change. "
        "Alexandari et al. 2020, arXiv:1901.06852.",
    )
    seeds: tuple[Seed, ...] = Field(
        (1, 2, 3), min_length=1, description="Seeds, one run per seed; the report gives the mean."
    )
    compare_random: bool = Field(
        True, description="Also train the same model from random weights until it stops improving."
    )
    compare_initial: bool = Field(
        True,
        description="Where pre-training began with token embeddings from counts, also train the model as it was before "
        "the first step, like that from random weights: what the counts alone are worth.",
    )
    random_max_epochs: int = Field(
        20, ge=1, le=MOST_EPOCHS, description="Maximum number of epochs from random weights, at least `epochs`."
    )
    random_patience_epochs: int = Field(
        5,
        ge=1,
        description="Stop a run from random weights after this many epochs in which neither its dev score nor its dev "
        "loss has improved.",
    )
    label_counts: tuple[Annotated[int, Field(ge=1, le=MOST_EXAMPLES)] | Literal["all"], ...] | None = Field(
        None,
        min_length=1,
        description="Also train on subsets of the first rows, such as [100, 300, 1000, all], for a curve of scores "
        "over labels. Default: all rows only.",
    )
    grid: GridConfig | None = Field(
        None,
        description="Learning rates, epochs and batch sizes to choose from by the dev score. Default: no search.",
    )

    @model_validator(mode="after")
    def _check_combinations(self):
        lists = (("seeds", "each seed", self.seeds), ("label_counts", "each number", self.label_counts or ()))
        for name, each, values in (*lists, ("lora_targets", "each", self.lora_targets)):
            if len({*values}) < len(values):
                raise ValueError(f"`{name}` must name {each} once. Received: {list(values)}. Remove the duplicate.")
        if self.lora_rank is not None and self.frozen_layers is not None:
            raise ValueError(
                f"`frozen_layers` must go without LoRA, which freezes all layers. Received: frozen_layers="
                f"{self.frozen_layers}, lora_rank={self.lora_rank}. Leave out one."
            )
        if self.lora_rank is None and self.lora_output == ADAPTER:
            raise ValueError("`lora_output: adapter` must go with LoRA. Received: no lora_rank. Set it to 8, for one.")
        self._check_teacher()
        if self.minutes is not None and (self.grid is not None or self.label_counts):
            name = "grid" if self.grid is not None else "label_counts"
            raise ValueError(
                f"`finetuning.minutes` must go without `{name}`, whose points are compared. Received: minutes="
                f"{self.minutes:g} and {name}. Leave out one."
            )
        for batch_size in (self.batch_size, *(self.grid.batch_size if self.grid else ())):
            check_equal_parts(batch_size, self.accumulate_batches or 1)
        return self

    def _check_teacher(self) -> None:
        if self.layer_epochs and self.teacher is None:
            raise ValueError(
                f"`finetuning.layer_epochs` must go with a teacher. Received: layer_epochs={self.layer_epochs}, no "
                "teacher. Set finetuning.teacher to its model directory."
            )
        if self.teacher is None:
            return
        partial = {"lora_rank": self.lora_rank, "frozen_layers": self.frozen_layers}
        if given := [f"{name}={value}" for name, value in partial.items() if value is not None]:
            raise ValueError(
                f"`finetuning.teacher` must go with a student of which all weights are trained. Received: {given[0]}. "
                "Leave it out."
            )
        if self.layer_epochs and self.minutes is not None:
            raise ValueError(
                "`finetuning.minutes` must go without `layer_epochs`, which it does not limit. Received: "
                f"minutes={self.minutes:g}, layer_epochs={self.layer_epochs}. Leave out one."
            )


# Section `augmentation`.


class AugmentationConfig(Settings):
    """Copies of the training rows in which words are replaced. Defaults: Jiao et al. 2020 (TinyBERT), section 3.2."""

    copies: int = Field(
        20,
        ge=1,
        le=MOST_UNITS,
        description="Copies of each training row; those that equal another or the row are dropped. In the paper: 10 "
        "for MNLI and QQP, 20 for SST-2 and QNLI, 30 for smaller tables.",
    )
    replacement_probability: float = Field(
        0.4, gt=0, le=1, description="Probability with which a copy replaces each word that has candidates."
    )
    candidates: int = Field(15, ge=1, le=1_000, description="Maximum number of candidates for each word.")
    seed: Seed | None = Field(None, description="Seed of the replacements. Default: that of the run.")
    model: str | None = Field(
        None,
        description="Model directory with a masked-LM head, or hf://org/name, that proposes the words. Default: the "
        "teacher of `distillation` if there is one, else the pre-trained model.",
    )
    stop_words: str | None = Field(
        None, description="File of words that are never replaced, one per line. Default: English function words."
    )


# Section `evaluation`.


class EvaluationConfig(Settings):
    """What the report measures in addition to the task."""

    minimal_pairs: str | None = Field(
        None,
        description="File of minimal pairs in the format of BLiMP, .jsonl, also .gz, .bz2, .xz and .zst, on which the "
        "pre-trained model is scored. Default: none.",
    )
    minimal_pairs_limit: int | None = Field(
        None, ge=1, le=MOST_EXAMPLES, description="Maximum number of pairs per phenomenon, from the start of the file."
    )


# Section `task`: one frozen model a kind of task, made from the settings of that kind; `kind` chooses.


class TaskConfig(Settings):
    """What every kind of task has."""

    name: str = Field(BUILTIN, description="Name shown in the report; `builtin` is the docstring task.")
    train: str = Field(BUILTIN, description="Training file, local or at s3:// and the like; or `builtin`.")
    dev: str = Field(BUILTIN, description="Evaluation file, in the same format; or `builtin`.")
    extra_dev: dict[str, str] = Field(
        {}, description="Name → further evaluation file, measured at the end; only `dev` selects models."
    )

    @model_validator(mode="after")
    def _check_files(self):
        if (self.train == BUILTIN) != (self.dev == BUILTIN):
            raise ValueError(
                f"`train` and `dev` are both files or both `builtin`. Received: train={self.train}, dev={self.dev}. "
                "Give the missing file."
            )
        for name in self.extra_dev:
            if name == "dev" or not re.fullmatch("[A-Za-z0-9_-]+", name):  # it becomes part of the names of files
                raise ValueError(
                    f"A name in `extra_dev` must be of letters, digits, - and _, and not `dev`. Received: {name!r}. "
                    "Rename it"
                )
        return self

    @property
    def arguments(self) -> dict[str, Any]:
        """The kind of the task and its fields, as arguments of `make_task`."""
        return self.model_dump(exclude={"name", "train", "dev", "extra_dev"})


def _make_section(settings: type[TaskSettings]) -> type[TaskConfig]:
    """Return the section `task` of one kind: what every kind has, and its own settings."""
    hints = get_type_hints(settings, include_extras=True)
    own: dict[str, Any] = {field.name: (hints[field.name], field.default) for field in fields(settings)}
    kind: Any = (Literal[settings.kind], Field(settings.kind, description="Kind of the task."))
    name = settings.__name__.replace("Settings", "Config")
    return create_model(name, __base__=TaskConfig, __doc__=settings.__doc__, kind=kind, **own)


TASKS = {settings.kind: _make_section(settings) for settings in SETTINGS}
TAUGHT = ("classification", "regression")  # kinds of task with a teacher
AUGMENTED = ("classification", "regression")  # kinds of task whose training rows can be augmented
POOLED = tuple(settings.kind for settings in SETTINGS if settings.is_pooled)
HEADLESS = tuple(settings.kind for settings in SETTINGS if not settings.has_head)
PACKED = tuple(settings.kind for settings in SETTINGS if settings.is_packable)
CALIBRATED = tuple(settings.kind for settings in SETTINGS if settings.is_calibrated)


def kind_of(task: Any) -> str:
    """Return the kind of a task's settings, or of what is to become such; by default the first."""
    first = next(iter(TASKS))
    return task.get("kind", first) if isinstance(task, dict) else getattr(task, "kind", first)


TAGGED = [Annotated[task, Tag(kind)] for kind, task in TASKS.items()]
if TYPE_CHECKING:  # a union that a table makes is no type to a checker
    AnyTask = TaskConfig
else:
    AnyTask = Annotated[reduce(or_, TAGGED), Discriminator(kind_of)]
