"""The whole configuration: all sections, and what must agree between them."""

from typing import Literal

from pydantic import Field, model_validator

from keras_bert_flow.config.corpus import CorpusConfig
from keras_bert_flow.config.distillation import DistillationConfig
from keras_bert_flow.config.distribution import DistributionConfig
from keras_bert_flow.config.evaluation import EvaluationConfig
from keras_bert_flow.config.finetuning import FinetuningConfig, GridConfig
from keras_bert_flow.config.limits import Seed
from keras_bert_flow.config.matrix import MatrixConfig
from keras_bert_flow.config.model import ModelConfig
from keras_bert_flow.config.optimization import check_at_most
from keras_bert_flow.config.pretraining import PretrainingConfig, SecondPhaseConfig
from keras_bert_flow.config.records import RecordsConfig
from keras_bert_flow.config.settings import Settings
from keras_bert_flow.config.tasks import POOLED, TASKS, AnyTask, kind_of
from keras_bert_flow.config.tuning import TuningConfig
from keras_bert_flow.config.vocabulary import VocabularyConfig

Backend = Literal["jax", "tensorflow", "torch"]


class PipelineConfig(Settings):
    """Everything from raw text to the report."""

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
        description="Minutes that `kbf run` should take: it shortens pre-training and fine-tuning, if they have "
        "`minutes`, by what the other stages take more than the rest. Default: each stage has its own limit, if any.",
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
    finetuning: FinetuningConfig = Field(default_factory=FinetuningConfig, description="Fine-tuning.")
    evaluation: EvaluationConfig = Field(
        default_factory=EvaluationConfig, description="What the report measures in addition to the task."
    )
    matrix: MatrixConfig | None = Field(None, description="Many runs of this configuration. Default: one.")
    tuning: TuningConfig | None = Field(None, description="What `kbf tune` searches. Default: nothing.")

    @model_validator(mode="after")
    def _check_loggers(self):
        if len({*self.loggers}) < len(self.loggers):
            raise ValueError(f"`loggers` must name each once. Received: {list(self.loggers)}. Remove the duplicate.")
        return self

    @model_validator(mode="after")
    def _check_lengths(self):
        trained = "records" if self.pretraining.sequence_length is None else "pretraining"
        for stage in (trained, *(("second_phase",) if self.second_phase else ())):
            length = getattr(self, stage).sequence_length
            check_at_most(f"{stage}.sequence_length", length, "model.max_positions", self.model.max_positions)
        return self

    @model_validator(mode="after")
    def _check_pooling(self):
        if self.finetuning.pooling is not None and kind_of(self.task) not in POOLED:
            raise ValueError(
                f"`finetuning.pooling` must go with a task of kind {', '.join(POOLED)}. Received: "
                f"pooling={self.finetuning.pooling}, kind={kind_of(self.task)}. Leave it out."
            )
        return self

    @model_validator(mode="after")
    def _check_head_start(self):
        if self.finetuning.head_start == "probe" and kind_of(self.task) not in POOLED:
            raise ValueError(
                f"`finetuning.head_start: probe` must go with a task of kind {', '.join(POOLED)}. Received: "
                f"head_start=probe, kind={kind_of(self.task)}. Leave it out."
            )
        return self

    @model_validator(mode="after")
    def _check_calibration(self):
        if self.finetuning.calibrate and kind_of(self.task) != "classification":
            raise ValueError(
                "`finetuning.calibrate` must go with a task of kind classification. Received: "
                f"kind={kind_of(self.task)}. Leave it out."
            )
        return self

    @model_validator(mode="after")
    def _check_label_words(self):
        settings, kind = self.finetuning, kind_of(self.task)
        if settings.label_words is None:
            return self
        received = f"kind={kind}, pooling={settings.pooling}, head_start={settings.head_start}"
        if received != "kind=classification, pooling=bag_of_words, head_start=probe":
            raise ValueError(
                "`finetuning.label_words` must go with a task of kind classification, pooling: bag_of_words and "
                f"head_start: probe. Received: {received}. Set these, or leave it out."
            )
        if without := [label for label, words in settings.label_words.items() if not words]:
            raise ValueError(
                f"`finetuning.label_words` must have a word for each class. Received: none for {without[0]!r}. "
                "Give one."
            )
        return self

    @model_validator(mode="after")
    def _check_pairs_stay_together(self):
        parts = self.finetuning.accumulate_batches or 1
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
        if self.distillation.teacher is not None and self.second_phase is not None:
            raise ValueError(
                "`distillation.teacher` must not go with a second phase: its model is the teacher, and this one is not "
                f"pre-trained. Received: teacher={self.distillation.teacher}. Leave out one of them."
            )
        length = self.phases[-1].pretraining.sequence_length or self.phases[-1].records.sequence_length
        check_at_most(
            "sequence_length", length, "distillation.student.max_positions", self.distillation.student.max_positions
        )
        return self

    @model_validator(mode="after")
    def _check_initial_model(self):
        teacher = self.distillation.teacher if self.distillation is not None else None
        if self.initial_model is not None and teacher is not None:
            raise ValueError(
                "`initial_model` must not go with `distillation.teacher`, with which nothing is pre-trained. Received: "
                f"initial_model={self.initial_model}, teacher={teacher}. Leave out one of them."
            )
        return self

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

        def replace(section: Settings) -> Settings:
            return section.model_copy(update={name: given[name] for name in given.keys() & type(section).model_fields})

        sections = {"records": replace(self.records), "pretraining": replace(self.pretraining)}
        return (self, self.model_copy(update=sections | {"second_phase": None}))


def with_grid(config: PipelineConfig) -> PipelineConfig:
    """Return a configuration that tries a grid: its own, or where it has none that of the paper."""
    grid = config.finetuning.grid or GridConfig()
    return config.model_copy(update={"finetuning": config.finetuning.model_copy(update={"grid": grid})})
