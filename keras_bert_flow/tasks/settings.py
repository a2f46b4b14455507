"""Settings of every kind of task, and the base class of them.

Each kind declares its settings once, here, as a frozen dataclass. The task inherits them, and `config.finetuning` makes
the section `task` of a configuration from them, with descriptions and limits, without importing the code of the tasks.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

Header = Annotated[bool, Field(description="The first line of a .tsv or .csv names the columns.")]
COMPARED = "Metric by which runs are compared"


class TaskSettings:
    """Base class of the settings of a kind of task.

    Attributes:
        kind: name of the kind in a configuration and in a model directory.
        is_pooled: whether the head predicts from one vector per text, so that `pooling` and a probe apply.
        has_head: whether the model has weights besides its encoder.
        is_calibrated: whether `calibrate` applies.
        is_packable: whether each token of a single text has a label, so that `packing` applies.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]  # each kind is a dataclass
    kind: ClassVar[str]
    is_pooled: ClassVar[bool] = False
    has_head: ClassVar[bool] = True
    is_calibrated: ClassVar[bool] = False
    is_packable: ClassVar[bool] = False


@dataclass(frozen=True)
class TextSettings(TaskSettings):
    """Columns of the texts and of the label."""

    is_pooled: ClassVar[bool] = True

    text: Annotated[str, Field(description="Column of the text: a name, or a number from 0 if there is no header.")] = (
        "text"
    )
    text_pair: Annotated[str | None, Field(description="Column of a second text, for pairs.")] = None
    label: Annotated[str, Field(description="Column of the label: a name, or a number from 0.")] = "label"


@dataclass(frozen=True)
class ClassificationSettings(TextSettings):
    """One of several classes for each text."""

    kind: ClassVar[str] = "classification"
    is_calibrated: ClassVar[bool] = True

    header: Header = True
    main_metric: Annotated[
        Literal["accuracy", "f1", "f1_positive", "matthews"],
        Field(description=f"{COMPARED}; `f1` is the mean over classes, `f1_positive` that of the second."),
    ] = "accuracy"
    labels: Annotated[tuple[str, ...], Field(description="The classes. Default: those of the training table.")] = ()


@dataclass(frozen=True)
class RegressionSettings(TextSettings):
    """A number for each text."""

    kind: ClassVar[str] = "regression"

    header: Header = True
    main_metric: Annotated[Literal["pearson", "spearman"], Field(description=f"{COMPARED}.")] = "spearman"
    lowest: Annotated[float | None, Field(description="Smallest possible number; predictions are clipped to it.")] = (
        None
    )
    highest: Annotated[float | None, Field(description="Largest possible number; predictions are clipped to it.")] = (
        None
    )


@dataclass(frozen=True)
class MultiLabelSettings(TextSettings):
    """Any number of labels for each text."""

    kind: ClassVar[str] = "multi_label"

    separator: Annotated[str, Field(min_length=1, description="Separator between labels in one column.")] = "|"
    label_columns: Annotated[
        tuple[str, ...], Field(description="One column of 0 and 1 per label, instead of `label`.")
    ] = ()
    threshold: Annotated[float, Field(gt=0, lt=1, description="Minimum probability of a predicted label.")] = 0.5
    header: Header = True
    main_metric: Annotated[Literal["f1_micro", "f1_macro", "exact_match"], Field(description=f"{COMPARED}.")] = (
        "f1_micro"
    )
    labels: Annotated[tuple[str, ...], Field(description="The labels. Default: those of the training table.")] = ()


@dataclass(frozen=True)
class MultipleChoiceSettings(TaskSettings):
    """The correct one of several continuations of a text, as in SWAG or RACE."""

    kind: ClassVar[str] = "multiple_choice"

    context: Annotated[str, Field(description="Column of the context.")] = "sent1"
    question: Annotated[str | None, Field(description="Column of the text before each choice, if any.")] = "sent2"
    choices: Annotated[
        tuple[str, ...],
        Field(min_length=1, description="One column per choice, or one field of a JSON object that lists them."),
    ] = ("ending0", "ending1", "ending2", "ending3")
    label: Annotated[str, Field(description="Column of the correct choice, a number from 0 or a letter from A.")] = (
        "label"
    )
    header: Header = True


@dataclass(frozen=True)
class SentenceEmbeddingSettings(TaskSettings):
    """A vector for each text, learned from pairs of texts."""

    kind: ClassVar[str] = "sentence_embedding"
    has_head: ClassVar[bool] = False

    objective: Annotated[
        Literal["contrastive", "cosine"],
        Field(
            description="Whether the texts of a row belong together, or have a similarity score as the target of "
            "their cosine."
        ),
    ] = "contrastive"
    text: Annotated[str, Field(description="Column of the first text: a name, or a number from 0.")] = "text"
    text_pair: Annotated[str, Field(description="Column of the second text.")] = "text_pair"
    label: Annotated[str, Field(description="Column of the score, for the objective `cosine`.")] = "label"
    header: Header = True
    lowest: Annotated[float, Field(description="Score that corresponds to a cosine of 0: unrelated texts.")] = 0.0
    highest: Annotated[float, Field(description="Score that corresponds to a cosine of 1: the same meaning.")] = 1.0
    scale: Annotated[
        float,
        Field(gt=0, description="Scale of the cosines in the objective `contrastive`: 1 / temperature."),
    ] = 20.0
    pooling: Annotated[
        Literal["mean", "cls", "max"] | None,
        Field(description="Pooling of the token vectors. Default: that of the model, else the mean."),
    ] = None
    normalize: Annotated[
        bool | None, Field(description="Normalise vectors to length 1. Default: as in the model, else true.")
    ] = None
    main_metric: Annotated[
        Literal["mrr", "accuracy", "spearman", "pearson"] | None,
        Field(description=f"{COMPARED}. Default: `mrr` for pairs, `spearman` for scores."),
    ] = None


@dataclass(frozen=True)
class TokenClassificationSettings(TaskSettings):
    """A tag for each word: CoNLL columns, or .jsonl with `words` and `tags`."""

    kind: ClassVar[str] = "token_classification"
    is_packable: ClassVar[bool] = True

    word_column: Annotated[int | Literal["last"], Field(description="Column of the word, from 0.")] = 0
    tag_column: Annotated[int | Literal["last"], Field(description="Column of the tag, from 0.")] = "last"
    scheme: Annotated[
        Literal["IOB1", "IOB2", "BIOES", "plain"] | None,
        Field(description="Tagging scheme of spans. Default: detected from the tags."),
    ] = None
    stride: Annotated[
        int | None,
        Field(ge=1, description="Stride between the windows of a long sentence, in pieces. Default: half a window."),
    ] = None
    strict: Annotated[bool, Field(description="Count spans like seqeval's strict mode, not like conlleval.")] = False
    main_metric: Annotated[
        Literal["precision", "recall", "f1", "accuracy"],
        Field(description=f"{COMPARED}; always accuracy for plain tags."),
    ] = "f1"


@dataclass(frozen=True)
class QuestionAnsweringSettings(TaskSettings):
    """The span of a text that answers a question: SQuAD's JSON, or .jsonl."""

    kind: ClassVar[str] = "question_answering"

    stride: Annotated[int, Field(ge=1, description="Stride between the windows of a long text, in pieces.")] = 128
    max_question_tokens: Annotated[
        int, Field(ge=1, description="Maximum length of a question, in pieces; longer ones are truncated.")
    ] = 64
    max_answer_tokens: Annotated[int, Field(ge=1, description="Maximum length of an answer, in pieces.")] = 30
    n_best: Annotated[int, Field(ge=1, description="Maximum number of answers per prediction.")] = 20
    null_threshold: Annotated[
        float | None,
        Field(
            description="Margin by which the null answer must exceed the best answer to be predicted. Default: every "
            "question has an answer."
        ),
    ] = None
    main_metric: Annotated[Literal["f1", "exact"], Field(description=f"{COMPARED}.")] = "f1"


SETTINGS: tuple[type[TaskSettings], ...] = (
    ClassificationSettings,
    RegressionSettings,
    MultiLabelSettings,
    MultipleChoiceSettings,
    SentenceEmbeddingSettings,
    TokenClassificationSettings,
    QuestionAnsweringSettings,
)
