"""Say everything that a run can be told: one frozen model a stage, for YAML, `--set`, the CLI and the Prefect form."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from keras_bert_flow.settings import BUILTIN, LocalPath, Settings
from keras_bert_flow.task_config import AnyTask, ClassificationConfig

Backend = Literal["jax", "tensorflow", "torch"]
AUTO = "auto"
Precision = Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"]
Optimizer = Literal["adamw", "bert_adam", "lamb"]
PretrainingOptimizer = Literal["adamw", "bert_adam", "lamb", "muon"]
Decay = Literal["linear", "cosine", "constant"]
DecayFrom = Literal["warmup", "start"]
# Far beyond what anybody trains; a slip of the keyboard would otherwise take all memory, or a year.
MOST_PIECES = 10_000_000
MOST_SHARDS = 100_000
MOST_LAYERS, MOST_HEADS = 1_000, 4_096
MOST_UNITS = 1 << 16
MOST_POSITIONS = MOST_SEQUENCES = 1 << 20
MOST_STEPS = MOST_EXAMPLES = 10**12
MOST_EPOCHS = 100_000
POOLED_TASKS = ("classification", "regression", "multi_label")  # whose heads predict from one vector for each text
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]  # as NumPy and Keras take them


class CorpusConfig(Settings):
    """Where the text is and how its lines are read."""

    input: tuple[str, ...] = Field(
        (BUILTIN,),
        min_length=1,
        description="Files, folders or globs of .txt, .jsonl (.gz, .bz2, .xz, .zst) and .parquet, here or at gs:// and "
        "s3://; or `builtin`, the docstrings here.",
    )
    text_field: str = Field("text", description="Field of a JSON line, column of a Parquet file, that holds the text.")
    lines: Literal["paragraphs", "sentences"] = Field(
        "paragraphs", description="A line is a paragraph, to be split into sentences, or already one sentence."
    )
    max_line_bytes: int = Field(1_000_000, ge=1, description="Longer lines are rejected and counted, bytes.")
    strict: bool = Field(False, description="Refuse the corpus at the first line that is not UTF-8 or is too long.")
    skip_bad_inputs: bool = Field(
        False, description="Leave out, count and name files that cannot be opened or read to their end."
    )
    max_rejected_share: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Largest share of the bytes of the corpus that may be rejected, skipped files included.",
    )


class VocabularyConfig(Settings):
    """How the WordPiece vocabulary is learnt."""

    size: int = Field(
        30522, ge=6, le=MOST_PIECES, description="Pieces in the vocabulary, the five special ones included."
    )
    cased: bool = Field(False, description="Keep case and accents.")
    min_character_count: int = Field(
        1, ge=1, description="Characters seen less often are left out and become [UNK], occurrences."
    )
    max_cjk_characters: int = Field(
        8000, ge=0, description="Han characters to keep, the most frequent ones; the others become [UNK]."
    )
    file: LocalPath | None = Field(None, description="Use this vocab.txt and learn none.")


class RecordsConfig(Settings):
    """How documents become masked instances (Devlin et al. 2019, section 3.1 and appendix A.2)."""

    objective: Literal["mlm_nsp", "mlm", "mlm_sop"] = Field(
        "mlm_nsp",
        description="Masked tokens with next-sentence pairs (BERT), alone in full sequences (RoBERTa), or with "
        "sentence order (ALBERT).",
    )
    sequence_length: int = Field(128, ge=8, description="Tokens of an instance, [CLS] and [SEP] included.")
    max_predictions: int = Field(20, ge=1, description="Most masked tokens of an instance.")
    masked_fraction: float = Field(0.15, gt=0, lt=1, description="Share of an instance's tokens to mask.")
    mask_unit: Literal["token", "word", "span"] = Field(
        "token", description="What is masked as a whole: a token, a word, or a span of 1 to 10 words (SpanBERT)."
    )
    short_fraction: float = Field(0.1, ge=0, le=1, description="Share of passes with a random shorter length.")
    duplication: int = Field(5, ge=1, description="Times each document is used, with other pairs and masks.")
    held_out_fraction: float = Field(0.02, ge=0, lt=1, description="Share of documents kept for evaluation.")
    shards: int | None = Field(
        None,
        ge=1,
        le=MOST_SHARDS,
        description="Files of training records. Default: at least 4, enough to keep each file below 256 MB.",
    )


class ModelConfig(Settings):
    """The shape of the network."""

    size: Literal["tiny", "mini", "small", "medium", "base", "large"] = Field("base", description="A published size.")
    num_layers: int | None = Field(
        None, ge=1, le=MOST_LAYERS, description="Encoder blocks; by default those of `size`."
    )
    hidden_dim: int | None = Field(
        None, ge=1, le=MOST_UNITS, description="Width of a token; by default that of `size`."
    )
    num_heads: int | None = Field(None, ge=1, le=MOST_HEADS, description="Attention heads; by default those of `size`.")
    intermediate_dim: int | None = Field(
        None, ge=1, le=4 * MOST_UNITS, description="Width of the feed-forward; by default `size`'s."
    )
    max_positions: int = Field(512, ge=8, le=MOST_POSITIONS, description="Longest sequence the model can take, tokens.")
    hidden_act: Literal["gelu", "gelu_tanh"] = Field("gelu", description="The erf GELU of 2018, or the tanh one.")
    dropout_rate: float = Field(0.1, ge=0, lt=1, description="Dropout after embeddings and sublayers.")
    attention_dropout_rate: float = Field(0.1, ge=0, lt=1, description="Dropout on attention probabilities.")


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
    batch_size: int = Field(256, ge=1, le=MOST_SEQUENCES, description="Sequences of a step.")
    accumulate_batches: int = Field(
        1, ge=1, description="Parts in which a step's sequences are computed one after another, to the same step."
    )
    total_steps: int = Field(1_000_000, ge=1, le=MOST_STEPS, description="Optimizer steps.")
    warmup_steps: int = Field(10_000, ge=0, description="Steps in which the learning rate rises from 0.")
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
    optimizer: PretrainingOptimizer = Field(
        "adamw",
        description="AdamW; `bert_adam`, the original's, without bias correction; `lamb`, for large batches; `muon` "
        "for the matrices of the encoder, AdamW for the rest.",
    )
    learning_rate: float = Field(1e-4, gt=0, description="Highest learning rate.")
    matrix_learning_rate: float = Field(
        0.02, gt=0, description="Highest learning rate of the matrices of the encoder, with `optimizer: muon`."
    )
    token_embedding_learning_rate: float | None = Field(
        None,
        gt=0,
        description="Highest learning rate of the token embeddings, which are the output projection as well. Default: "
        "`learning_rate`.",
    )
    decay: Decay = Field(
        "linear", description="How the learning rate falls to 0 at the last step; `constant`: it stays."
    )
    decay_from: DecayFrom = Field(
        "warmup", description="The fall is measured from the end of the warm-up, or from step 0 as in the original."
    )
    weight_decay: float = Field(0.01, ge=0, description="Decoupled decay; biases and layer norms are never decayed.")
    clip_norm: float = Field(1.0, gt=0, description="Largest global norm of the gradient.")
    precision: Precision = Field(
        "float32",
        description="Arithmetic; weights, softmax, layer norms and losses stay float32. `auto`: mixed_bfloat16 where "
        "this machine trains faster in it, else float32.",
    )
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
        _check_steps(self)
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
    """Pre-training gone on with longer sequences; what is not said here is as in `records` and `pretraining`.

    Defaults: Devlin et al. 2019, appendix A.2: a tenth of the steps at 512 tokens, for the positions beyond 128.
    """

    sequence_length: int = Field(512, ge=8, description="Tokens of an instance, [CLS] and [SEP] included.")
    max_predictions: int = Field(77, ge=1, description="Most masked tokens of an instance.")
    duplication: int | None = Field(None, ge=1, description="Times each document is used; by default as in `records`.")
    batch_size: int = Field(256, ge=1, le=MOST_SEQUENCES, description="Sequences of a step.")
    accumulate_batches: int = Field(
        1, ge=1, description="Parts in which a step's sequences are computed one after another, to the same step."
    )
    total_steps: int = Field(100_000, ge=1, le=MOST_STEPS, description="Optimizer steps, counted from 0 again.")
    warmup_steps: int = Field(1_000, ge=0, description="Steps in which the learning rate rises from 0.")
    learning_rate: float = Field(1e-4, gt=0, description="Highest learning rate.")

    @model_validator(mode="after")
    def _check_durations(self):
        _check_steps(self)
        return self


class GridConfig(Settings):
    """Settings of fine-tuning to try, each with each. Defaults: Devlin et al. 2019, appendix A.3."""

    learning_rate: tuple[Annotated[float, Field(gt=0)], ...] = Field(
        (5e-5, 3e-5, 2e-5), min_length=1, description="Highest learning rates, in place of that of `finetuning`."
    )
    epochs: tuple[Annotated[int, Field(ge=1, le=MOST_EPOCHS)], ...] = Field(
        (2, 3, 4), min_length=1, description="Passes over the training table, each number a run of its own."
    )
    batch_size: tuple[Annotated[int, Field(ge=1, le=MOST_SEQUENCES)], ...] = Field(
        (16, 32), min_length=1, description="Examples of a step."
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
    """How a pre-trained model learns a task. Defaults: Devlin et al. 2019, appendix A.3."""

    batch_size: int = Field(32, ge=1, le=MOST_SEQUENCES, description="Examples of a step.")
    accumulate_batches: int | None = Field(
        None,
        ge=1,
        description="Parts in which a step's examples are computed, the shortest first, to the same step. Default: 1, "
        "2 or 4, the fastest for the lengths of the table; 1 on an accelerator.",
    )
    epochs: int = Field(3, ge=1, le=MOST_EPOCHS, description="Passes over the training table.")
    max_train_examples: int | None = Field(
        None, ge=1, le=MOST_EXAMPLES, description="Use only the first so many rows of the table."
    )
    sequence_length: int = Field(128, ge=8, description="Tokens of an example; longer ones are cut.")
    optimizer: Optimizer = Field(
        "adamw",
        description="AdamW; `bert_adam`, the original's, without bias correction; `lamb`, for large batches.",
    )
    learning_rate: float = Field(5e-5, gt=0, description="Highest learning rate.")
    layer_decay: float = Field(
        1.0,
        gt=0,
        le=1,
        description="Factor of the learning rate for each layer further from the head; 1: none.",
    )
    warmup_fraction: float = Field(0.1, ge=0, lt=1, description="Share of the steps in which the rate rises from 0.")
    decay: Decay = Field(
        "linear", description="How the learning rate falls to 0 at the last step; `constant`: it stays."
    )
    decay_from: DecayFrom = Field(
        "warmup", description="The fall is measured from the end of the warm-up, or from step 0 as in the original."
    )
    weight_decay: float = Field(0.01, ge=0, description="Decoupled decay; biases and layer norms are never decayed.")
    clip_norm: float = Field(1.0, gt=0, description="Largest global norm of the gradient.")
    epsilon: float = Field(
        1e-8, gt=0, description="Added to the root of the mean square of a gradient before a step is divided by it."
    )
    dropout_rate: float = Field(0.1, ge=0, lt=1, description="Dropout of the encoder and before the classifier.")
    new_head: bool = Field(False, description="Start from a new head even if the model has one for the kind of task.")
    pooling: Literal["cls", "mean", "bag_of_words"] | None = Field(
        None,
        description="What a head for whole texts predicts from: the pooler's output for [CLS]; the mean of the last "
        "hidden states; or that mean through the layers which predicted words from it, where the model was pre-trained "
        "with `bag_of_words`. Default: as the model's head, `cls` for a new one.",
    )
    head_start: Literal["random", "probe"] = Field(
        "random",
        description="First weights of a new head for whole texts: random, or a linear model fitted to the vectors of "
        "the training rows before the encoder is trained.",
    )
    label_words: dict[str, tuple[str, ...]] | None = Field(
        None,
        min_length=2,
        description="Class → words that a text of it would have, by which a probe begins: with `pooling: bag_of_words` "
        "the model knows how likely each is. Words of several pieces are not used. Left out, the labels alone tell.",
    )
    precision: Precision = Field(
        "float32",
        description="Arithmetic; weights, softmax, layer norms and losses stay float32. `auto`: mixed_bfloat16 where "
        "this machine trains faster in it, else float32.",
    )
    max_widths: int = Field(
        4,
        ge=1,
        le=8,
        description="Widths that batches have, at most; jax compiles a step for each.",
    )
    group_by_length: bool = Field(
        False,
        description="Batches hold examples of similar length instead of random ones: faster on JAX and TensorFlow, but "
        "their gradients have more variance where labels depend on length.",
    )
    patience_epochs: int | None = Field(
        None, ge=1, description="End a run where its dev score has not risen for so many epochs; left out, never."
    )
    publish: Literal["last", "best"] = Field(
        "last", description="Which model becomes the result: that of the last epoch, or of the best dev score."
    )
    seeds: tuple[Seed, ...] = Field((1, 2, 3), min_length=1, description="One run each; the report gives their mean.")
    compare_random: bool = Field(True, description="Also train the same model from random weights, to its end.")
    random_max_epochs: int = Field(
        20, ge=1, le=MOST_EPOCHS, description="Most passes over the training table from random weights, or `epochs`."
    )
    random_patience_epochs: int = Field(
        5,
        ge=1,
        description="End a run from random weights where neither its dev score nor its dev loss has improved for so "
        "many epochs.",
    )
    label_counts: tuple[Annotated[int, Field(ge=1, le=MOST_EXAMPLES)] | Literal["all"], ...] | None = Field(
        None,
        min_length=1,
        description="Train on the first so many rows as well, such as [100, 300, 1000, all], for a curve of scores "
        "over labels; left out, on all rows only.",
    )
    grid: GridConfig | None = Field(
        None,
        description="Learning rates, epochs and batch sizes to choose from by the dev score; left out, none are tried.",
    )

    @model_validator(mode="after")
    def _check_seeds(self):
        if len({*self.seeds}) < len(self.seeds):
            raise ValueError(
                f"`seeds` must name each seed once. Received: {list(self.seeds)}. Leave out the second of equals."
            )
        return self

    @model_validator(mode="after")
    def _check_label_counts(self):
        counts = self.label_counts or ()
        if len({*counts}) < len(counts):
            raise ValueError(
                f"`label_counts` must name each number once. Received: {list(counts)}. Leave out the second of equals."
            )
        return self

    @model_validator(mode="after")
    def _check_parts(self):
        for batch_size in (self.batch_size, *(self.grid.batch_size if self.grid else ())):
            _require_equal_parts(batch_size, self.accumulate_batches or 1)
        return self


class EvaluationConfig(Settings):
    """What the report measures beside the task."""

    minimal_pairs: LocalPath | None = Field(
        None,
        description="File of minimal pairs in the format of BLiMP, .jsonl, also .gz, .bz2, .xz and .zst, on which the "
        "pre-trained model is scored; left out, it is not.",
    )
    minimal_pairs_limit: int | None = Field(
        None, ge=1, le=MOST_EXAMPLES, description="Score only the first so many pairs of each phenomenon."
    )


class DistributionConfig(Settings):
    """Over which devices pre-training is spread; it changes a result by rounding only, so it is in no key."""

    kind: Literal["auto", "single", "data_parallel", "model_parallel", "tpu"] = Field(
        "auto",
        description="`data_parallel`: each device computes rows of a batch; `model_parallel`: several share a copy of "
        "the model (jax); `tpu`: data_parallel, refused where there is none; `auto`: by what the process finds.",
    )
    devices: int | None = Field(
        None, ge=1, description="Devices of all processes together; by default all. With torch each process has one."
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


class PipelineConfig(Settings):
    """Everything from raw text to the report."""

    name: str = Field("bert", description="Name of the run, shown in the report.")
    runs: LocalPath = Field("runs", description="Folder in which every stage keeps its results.")
    seed: Seed = Field(1, description="Seed of every random choice.")
    backend: Backend = Field("jax", description="Keras backend of the training stages.")
    beam: tuple[str, ...] = Field((), description="Options for Apache Beam, such as --runner=FlinkRunner.")
    corpus: CorpusConfig = Field(default_factory=CorpusConfig, description="The text.")
    vocabulary: VocabularyConfig = Field(default_factory=VocabularyConfig, description="The vocabulary.")
    records: RecordsConfig = Field(default_factory=RecordsConfig, description="The pre-training records.")
    model: ModelConfig = Field(default_factory=ModelConfig, description="The model.")
    pretraining: PretrainingConfig = Field(default_factory=PretrainingConfig, description="Pre-training.")
    distribution: DistributionConfig = Field(
        default_factory=DistributionConfig, description="The devices of pre-training; other stages take one."
    )
    second_phase: SecondPhaseConfig | None = Field(
        None, description="Pre-training gone on with longer sequences; left out, there is none."
    )
    task: AnyTask = Field(default_factory=ClassificationConfig, description="The task.")
    finetuning: FinetuningConfig = Field(default_factory=FinetuningConfig, description="Fine-tuning.")
    evaluation: EvaluationConfig = Field(
        default_factory=EvaluationConfig, description="What the report measures beside the task."
    )

    @model_validator(mode="after")
    def _check_lengths(self):
        trained = "records" if self.pretraining.sequence_length is None else "pretraining"
        for stage in (trained, "finetuning", *(("second_phase",) if self.second_phase else ())):
            length = getattr(self, stage).sequence_length
            _require_shorter(f"{stage}.sequence_length", length, "model.max_positions", self.model.max_positions)
        return self

    @model_validator(mode="after")
    def _check_pooling(self):
        if self.finetuning.pooling is not None and self.task.kind not in POOLED_TASKS:
            raise ValueError(
                f"`finetuning.pooling` must go with a task of kind {', '.join(POOLED_TASKS)}. Received: "
                f"pooling={self.finetuning.pooling}, kind={self.task.kind}. Leave it out."
            )
        return self

    @model_validator(mode="after")
    def _check_head_start(self):
        if self.finetuning.head_start == "probe" and self.task.kind not in POOLED_TASKS:
            raise ValueError(
                f"`finetuning.head_start: probe` must go with a task of kind {', '.join(POOLED_TASKS)}. Received: "
                f"head_start=probe, kind={self.task.kind}. Leave it out."
            )
        return self

    @model_validator(mode="after")
    def _check_label_words(self):
        settings, kind = self.finetuning, self.task.kind
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


def _check_steps(settings: "PretrainingConfig | SecondPhaseConfig") -> None:
    _require_shorter("warmup_steps", settings.warmup_steps, "total_steps", settings.total_steps)
    _require_equal_parts(settings.batch_size, settings.accumulate_batches)


def _require_equal_parts(batch_size: int, accumulate_batches: int) -> None:
    if batch_size % accumulate_batches:
        raise ValueError(
            "`batch_size` must be a multiple of `accumulate_batches`. Received: "
            f"batch_size={batch_size}, accumulate_batches={accumulate_batches}"
        )


def _require_shorter(name: str, value: int, limit_name: str, limit: int) -> None:
    if value > limit:
        raise ValueError(f"`{name}` must be at most `{limit_name}`. Received: {name}={value}, {limit_name}={limit}.")
