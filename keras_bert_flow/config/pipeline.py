"""The whole configuration: all sections, `matrix` and `tuning`, and what must agree between them."""

import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field, model_validator

from keras_bert_flow.config.finetuning import (
    AUGMENTED,
    CALIBRATED,
    PACKED,
    POOLED,
    TASKS,
    TAUGHT,
    AnyTask,
    AugmentationConfig,
    EvaluationConfig,
    FinetuningConfig,
    kind_of,
)
from keras_bert_flow.config.limits import MOST_PROCESSES, Seed, Settings
from keras_bert_flow.config.machine import choose_precision
from keras_bert_flow.config.pretraining import (
    AUTO,
    DistillationConfig,
    DistributionConfig,
    ModelConfig,
    PretrainingConfig,
    SecondPhaseConfig,
    check_at_most,
)
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig, VocabularyConfig

# Section `matrix`: one configuration, many runs.

MOST_CELLS = 256
NOT_VARIED = ("matrix", "runs", "name")
ONE_RUN = "matrix=null"  # the override that makes one run of a configuration with a matrix
MAX_LABEL = 80  # characters of a value in a label


class MatrixConfig(Settings):
    """The runs of a configuration: each entry of `variants` with each combination of `over`."""

    over: dict[str, tuple[Any, ...]] = Field(
        default_factory=dict,
        description="Setting → values to try, such as `backend: [jax, torch]`; a section is a value "
        "too, such as each of several tasks.",
    )
    variants: tuple[dict[str, Any], ...] = Field(
        (), description="Groups of settings that change together, such as a family and the objective of its records."
    )
    at_once: int = Field(1, ge=1, le=MOST_PROCESSES, description="Maximum number of concurrent runs.")

    @model_validator(mode="after")
    def _check_names(self):
        for name in itertools.chain(self.over, *self.variants):
            if name.split(".")[0] in NOT_VARIED:
                raise ValueError(f"A matrix must not change `{name}`. Received: {name}. Leave it out.")
        for name, values in self.over.items():
            if not values:
                raise ValueError(f"A matrix must have a value of each setting. Received: none of `{name}`. Give some.")
        return self


@dataclass(frozen=True)
class Cell:
    """One run of a matrix.

    Attributes:
        label: what sets it apart, such as `backend=torch, task=SST-2`.
        overrides: `key.sub=value` settings that make it of the configuration.
        names: of the settings that they change.
    """

    label: str
    overrides: tuple[str, ...]
    names: tuple[str, ...]


def list_cells(matrix: MatrixConfig) -> list[Cell]:
    """Return the runs of a matrix, in the order of the file.

    Raises:
        ValueError: there are none, or too many, or two are the same.
    """
    variants = matrix.variants or ({},)
    count = len(variants) * math.prod(map(len, matrix.over.values())) if matrix.over or matrix.variants else 0
    if not 1 <= count <= MOST_CELLS:
        raise ValueError(
            f"`matrix` must have from 1 to {MOST_CELLS} runs. Received: {count:,}. Give `over` or `variants` values."
        )
    combinations = itertools.product(*([(name, value) for value in values] for name, values in matrix.over.items()))
    chosen = [variant | dict(combination) for variant, combination in itertools.product(variants, combinations)]
    cells = []
    for settings in chosen:
        label = ", ".join(f"{name}={_name_value(value)}" for name, value in settings.items())
        # a section comes before a setting inside it, which would be lost with the section it replaces
        overrides = [f"{name}={json.dumps(settings[name])}" for name in sorted(settings, key=len)]
        cells.append(Cell(label, (*overrides, ONE_RUN), tuple(settings)))
    labels = [cell.label for cell in cells]
    if repeated := [label for label in labels if labels.count(label) > 1]:
        raise ValueError(
            f"The runs of a matrix must differ. Received: {repeated[0]}, twice. Give each section a `name` of its own."
        )
    return cells


def _name_value(value: Any) -> str:
    if isinstance(value, Mapping) and isinstance(value.get("name"), str):
        return value["name"]
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= MAX_LABEL else f"{text[:MAX_LABEL]}…"


# Section `tuning`.

Objective = Literal["dev_score", "held_out_loss"]


class Dimension(Settings):
    """The values that a search gives a setting: a range, or some of them."""

    low: int | float | None = Field(
        None, description="Lowest value; if both bounds are integers, integers are sampled."
    )
    high: int | float | None = Field(None, description="Highest value.")
    log: bool = Field(False, description="Sample uniformly in the logarithm.")
    choices: tuple[Any, ...] | None = Field(None, description="List of values, instead of a range.")

    @model_validator(mode="after")
    def _check_range(self):
        if self.choices is not None:
            if (self.low, self.high) != (None, None) or self.log:
                raise ValueError(
                    f"`choices` must go without low, high and log. Received: low={self.low}, high={self.high}, "
                    f"log={self.log}. Leave out the range or the choices."
                )
            if not self.choices or any(value in self.choices[:place] for place, value in enumerate(self.choices)):
                raise ValueError(
                    f"`choices` must name one value or more, each once. Received: {list(self.choices)}. Give others."
                )
            return self
        if self.low is None or self.high is None:
            raise ValueError(
                f"A range must have low and high. Received: low={self.low}, high={self.high}. Give both, or choices."
            )
        if self.low >= self.high or (self.log and self.low <= 0):
            raise ValueError(
                f"A range must have low below high, and above 0 with log. Received: low={self.low}, high={self.high}, "
                f"log={self.log}. Give other bounds."
            )
        return self

    @property
    def bounds(self) -> tuple[int | float, int | float]:
        """Lowest and highest value of a range.

        Raises:
            ValueError: the values are chosen from.
        """
        if self.low is None or self.high is None:
            raise ValueError(f"A range must have low and high. Received: choices={self.choices}.")
        return self.low, self.high

    @property
    def is_whole(self) -> bool:
        """Whether integers are drawn."""
        return isinstance(self.low, int) and isinstance(self.high, int)


class TuningConfig(Settings):
    """What `kbf tune` searches, by Optuna; no other command reads this."""

    trials: int = Field(20, ge=1, description="Number of trials, including pruned and failed ones.")
    seed: Seed = Field(1, description="Seed of the sampler.")
    startup_trials: int = Field(
        5, ge=1, description="Number of random, unpruned trials before the sampler starts to model the results."
    )
    pruning: bool = Field(
        True,
        description="Prune a trial whose best value is worse than the median of earlier trials at the same step.",
    )
    objective: Objective | None = Field(
        None,
        description="Maximise the dev score of the task, or minimise the loss on held-out records. "
        "Default: the former if the configuration has a section `task`.",
    )
    space: dict[str, Dimension] = Field(
        {},
        description="Setting → its values, such as `finetuning.learning_rate: {low: 1e-5, high: 1e-3, log: true}` or "
        "`pretraining.optimizer: {choices: [adamw, lamb]}`.",
    )


Backend = Literal["jax", "tensorflow", "torch"]


class PipelineConfig(Settings):
    """Everything from raw text to the report.

    Example:
        >>> config = kbf.PipelineConfig(name="mine", backend="torch")
        >>> config.model.family, config.pretraining.optimizer
        ('bert', 'adamw')
        >>> config.model_copy(update={"seed": 2}).seed
        2
    """

    name: str = Field("bert", description="Name of the run, shown in the report.")
    runs: str = Field(
        "runs", description="Folder in which every stage keeps its results, on a disk or at s3://, gs:// or hdfs://."
    )
    seed: Seed = Field(1, description="Seed of every random choice.")
    backend: Backend = Field("jax", description="Keras backend of the training stages.")
    loggers: tuple[Literal["mlflow", "wandb"], ...] = Field(
        (),
        description="Experiment loggers that also receive the parameters, losses and scores of training: `mlflow`, "
        "`wandb`. Their servers are set by their own environment variables.",
    )
    beam: tuple[str, ...] = Field((), description="Options for Apache Beam, such as --runner=FlinkRunner.")
    initial_model: str | None = Field(
        None,
        description="Model directory, or hf://org/name@revision, to continue pre-training from, with its tokenizer and "
        "its shape. Default: none.",
    )
    minutes: float | None = Field(
        None,
        gt=0,
        description="Minutes that `kbf run` should take: it shortens pre-training, distillation and fine-tuning, if "
        "they have `minutes`, by what the other stages take more than the rest. Default: each stage has its own limit, "
        "if any.",
    )
    corpus: CorpusConfig = Field(default_factory=CorpusConfig, description="The text.")
    vocabulary: VocabularyConfig = Field(default_factory=VocabularyConfig, description="The vocabulary.")
    records: RecordsConfig = Field(default_factory=RecordsConfig, description="The pre-training records.")
    model: ModelConfig = Field(default_factory=ModelConfig, description="The model.")
    pretraining: PretrainingConfig = Field(default_factory=PretrainingConfig, description="Pre-training.")
    distribution: DistributionConfig = Field(
        default_factory=DistributionConfig, description="The devices of pre-training; other stages take one."
    )
    second_phase: SecondPhaseConfig | None = Field(
        None, description="Continued pre-training with longer sequences. Default: none."
    )
    distillation: DistillationConfig | None = Field(
        None, description="A smaller model that learns from the pre-trained one, for the task. Default: none."
    )
    task: AnyTask = Field(default_factory=TASKS["classification"], description="The task.")
    augmentation: AugmentationConfig | None = Field(
        None, description="More training rows for the task, with words replaced. Default: none."
    )
    finetuning: FinetuningConfig = Field(default_factory=FinetuningConfig, description="Fine-tuning.")
    evaluation: EvaluationConfig = Field(
        default_factory=EvaluationConfig, description="What the report measures in addition to the task."
    )
    matrix: MatrixConfig | None = Field(None, description="Many runs of this configuration. Default: one.")
    tuning: TuningConfig | None = Field(None, description="What `kbf tune` searches. Default: nothing.")

    @model_validator(mode="after")
    def _check_lengths(self):
        if len({*self.loggers}) < len(self.loggers):
            raise ValueError(f"`loggers` must name each once. Received: {list(self.loggers)}. Remove the duplicate.")
        trained = "records" if self.pretraining.sequence_length is None else "pretraining"
        for stage in (trained, *(("second_phase",) if self.second_phase else ())):
            length = getattr(self, stage).sequence_length
            check_at_most(f"{stage}.sequence_length", length, "model.max_positions", self.model.max_positions)
        return self

    @model_validator(mode="after")
    def _check_finetuning(self):
        """Refuse settings of fine-tuning that do not fit the kind of the task."""
        settings, kind = self.finetuning, kind_of(self.task)
        if settings.pooling is not None and kind not in POOLED:
            raise ValueError(
                f"`finetuning.pooling` must go with a task of kind {', '.join(POOLED)}. Received: "
                f"pooling={settings.pooling}, kind={kind}. Leave it out."
            )
        if settings.head_start == "probe" and kind not in POOLED:
            raise ValueError(
                f"`finetuning.head_start: probe` must go with a task of kind {', '.join(POOLED)}. Received: "
                f"head_start=probe, kind={kind}. Leave it out."
            )
        if settings.teacher is not None and kind not in TAUGHT:
            raise ValueError(
                f"`finetuning.teacher` must go with a task of kind {', '.join(TAUGHT)}. Received: kind={kind}. Leave "
                "it out."
            )
        if settings.packing and kind not in PACKED:
            raise ValueError(
                f"`finetuning.packing` must go with a task of kind {', '.join(PACKED)}, whose tokens have the labels. "
                f"Received: kind={kind}. Leave it out."
            )
        if settings.calibrate and kind not in CALIBRATED:
            raise ValueError(
                f"`finetuning.calibrate` must go with a task of kind {', '.join(CALIBRATED)}. Received: "
                f"kind={kind}. Leave it out."
            )
        received = f"kind={kind}, pooling={settings.pooling}, head_start={settings.head_start}"
        if settings.label_words and received != "kind=classification, pooling=bag_of_words, head_start=probe":
            raise ValueError(
                "`finetuning.label_words` must go with a task of kind classification, pooling: bag_of_words and "
                f"head_start: probe. Received: {received}. Set these, or leave it out."
            )
        if without := [label for label, words in (settings.label_words or {}).items() if not words]:
            raise ValueError(
                f"`finetuning.label_words` must have a word for each class. Received: none for {without[0]!r}. "
                "Give one."
            )
        parts = settings.accumulate_batches or 1
        if parts > 1 and getattr(self.task, "objective", None) == "contrastive":
            raise ValueError(
                "The objective `contrastive` compares all pairs of a batch, which must not come in parts. Received: "
                f"finetuning.accumulate_batches={parts}. Leave it out, or choose the objective cosine."
            )
        return self

    @model_validator(mode="after")
    def _check_distillation(self):
        if self.distillation is None:
            return self
        teacher, student = self.distillation.teacher, self.distillation.student
        if teacher is not None and self.second_phase is not None:
            raise ValueError(
                "`distillation.teacher` must not go with a second phase: its model is the teacher, and this one is not "
                f"pre-trained. Received: teacher={teacher}. Leave out one of them."
            )
        length = self.phases[-1].pretraining.sequence_length or self.phases[-1].records.sequence_length
        check_at_most("sequence_length", length, "distillation.student.max_positions", student.max_positions)
        if self.initial_model is not None and teacher is not None:
            raise ValueError(
                "`initial_model` must not go with `distillation.teacher`, with which nothing is pre-trained. Received: "
                f"initial_model={self.initial_model}, teacher={teacher}. Leave out one of them."
            )
        minutes, transfer = self.pretraining.minutes, self.distillation.transfer
        if minutes is not None and transfer != "auxiliary":
            raise ValueError(
                f"`pretraining.minutes` must not go with `distillation.transfer: {transfer}`, whose steps are counted. "
                f"Received: minutes={minutes:g}. Leave it out."
            )
        return self

    @model_validator(mode="after")
    def _check_augmentation(self):
        if self.augmentation is not None:
            self.check_augmented()
        return self

    def check_augmented(self) -> None:
        """Raise ValueError unless the training rows of the task can be augmented."""
        settings, kind = self.finetuning, kind_of(self.task)
        if kind not in AUGMENTED:
            raise ValueError(
                f"`augmentation` must go with a task of kind {', '.join(AUGMENTED)}. Received: kind={kind}. Leave it "
                "out."
            )
        if settings.label_counts:
            raise ValueError(
                "`augmentation` must go without `finetuning.label_counts`, which takes the first rows of a table. "
                f"Received: label_counts={list(settings.label_counts)}. Leave out one."
            )
        if settings.train_examples == "random":
            raise ValueError(
                "`augmentation` must go with the first rows of a table. Received: finetuning.train_examples=random. "
                "Leave it out, or shuffle the table."
            )

    def check_finetuned_length(self) -> None:
        """Raise ValueError unless the model that this configuration makes has the positions of its fine-tuning.

        Not when the configuration is made, since a stage before fine-tuning, or the fine-tuning of another model, does
        not depend on it.
        """
        name, model = "model", self.model
        if self.distillation is not None:
            name, model = "distillation.student", self.distillation.student
        length = self.finetuning.sequence_length
        check_at_most("finetuning.sequence_length", length, f"{name}.max_positions", model.max_positions)

    @property
    def has_own_teacher(self) -> bool:
        """Whether `distillation` names its teacher, so that nothing is pre-trained."""
        return self.distillation is not None and self.distillation.teacher is not None

    @property
    def needed_augmentation(self) -> AugmentationConfig:
        """The section `augmentation`, with its defaults if it is not set."""
        return self.augmentation or AugmentationConfig()

    @property
    def needed_distillation(self) -> DistillationConfig:
        """The section `distillation`, which must be set."""
        if self.distillation is None:
            raise ValueError("A student must have the section `distillation`. Received: none. Give it.")
        return self.distillation

    @property
    def student(self) -> "PipelineConfig":
        """The configuration of the student of `distillation`, which must be set: sections `model` and `pretraining`."""
        last, given = self.phases[-1], self.needed_distillation.model_dump()
        settings = {name: given[name] for name in given.keys() & type(last.pretraining).model_fields}
        pretraining = last.pretraining.model_copy(update=settings | {"bag_of_words": 0.0})
        return last.model_copy(update={"model": self.needed_distillation.student, "pretraining": pretraining})

    @property
    def phases(self) -> tuple["PipelineConfig", ...]:
        """The configuration of each phase of pre-training: this one, and one whose sections are as in the second."""
        if self.second_phase is None:
            return (self,)
        given = self.second_phase.model_dump(exclude_none=True)
        changed: dict[str, Any] = {"second_phase": None}
        for name, section in (("records", self.records), ("pretraining", self.pretraining)):
            own = {key: given[key] for key in given.keys() & type(section).model_fields}
            changed[name] = section.model_copy(update=own)
        return (self, self.model_copy(update=changed))


SECTIONS = ("pretraining", "finetuning")  # whose `precision` may be `auto`


def resolve_precision(config: PipelineConfig, backend: str | None = None) -> PipelineConfig:
    """Return the configuration with every `precision: auto` replaced by a precision.

    Keys, saved files and comparisons never contain `auto`: it is replaced before the first key is computed.

    Args:
        backend: the backend that trains; by default the configuration's.
    """
    sections = {name: getattr(config, name) for name in SECTIONS}
    chosen = {name: section for name, section in sections.items() if section.precision == AUTO}
    if not chosen:
        return config
    precision = choose_precision(backend or config.backend)
    return config.model_copy(
        update={name: section.model_copy(update={"precision": precision}) for name, section in chosen.items()}
    )
