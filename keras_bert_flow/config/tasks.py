"""Say everything that a task can be told: one frozen model a kind of task; `kind` chooses."""

import re
from functools import reduce
from operator import or_
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from keras_bert_flow.config.settings import BUILTIN, LocalPath, Settings


class TaskConfig(Settings):
    """What every kind of task has."""

    name: str = Field(BUILTIN, description="Name shown in the report; `builtin` is the docstring task.")
    train: LocalPath = Field(BUILTIN, description="File to learn from, or `builtin`.")
    dev: LocalPath = Field(BUILTIN, description="File to be measured on, in the same format; or `builtin`.")
    extra_dev: dict[str, LocalPath] = Field(
        {}, description="Name → file to be measured on as well, at the end; `dev` alone chooses among models."
    )

    @model_validator(mode="after")
    def _check_builtin(self):
        if (self.train == BUILTIN) != (self.dev == BUILTIN):
            raise ValueError(
                f"`train` and `dev` are both files or both `builtin`. Received: train={self.train}, dev={self.dev}. "
                "Give the missing file."
            )
        return self

    @model_validator(mode="after")
    def _check_extra_dev(self):
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


class TableConfig(TaskConfig):
    """A table of texts: .tsv, .csv or .jsonl."""

    header: bool = Field(True, description="The first line of a .tsv or .csv names the columns.")
    text: str = Field("text", description="Column of the text: a name, or a number from 0 where there is no header.")
    text_pair: str | None = Field(None, description="Column of a second text, for pairs.")
    label: str = Field("label", description="Column of the label: a name, or a number from 0.")


class ClassificationConfig(TableConfig):
    """One of several classes for each text."""

    kind: Literal["classification"] = Field("classification", description="What the task is.")
    labels: tuple[str, ...] = Field((), description="The classes; left out, those of the training table.")
    main_metric: Literal["accuracy", "f1", "f1_positive", "matthews"] = Field(
        "accuracy", description="By which runs are compared; `f1` is the classes' mean, `f1_positive` the second's."
    )


class RegressionConfig(TableConfig):
    """A number for each text."""

    kind: Literal["regression"] = Field("regression", description="What the task is.")
    main_metric: Literal["pearson", "spearman"] = Field("spearman", description="By which runs are compared.")
    lowest: float | None = Field(None, description="Lowest number there can be; predictions are cut to it.")
    highest: float | None = Field(None, description="Highest number there can be; predictions are cut to it.")


class MultiLabelConfig(TableConfig):
    """Any number of labels for each text."""

    kind: Literal["multi_label"] = Field("multi_label", description="What the task is.")
    separator: str = Field("|", min_length=1, description="Between two labels of one column.")
    label_columns: tuple[str, ...] = Field((), description="A column of 0 and 1 for each label, in place of `label`.")
    threshold: float = Field(0.5, gt=0, lt=1, description="Probability from which on a label is given.")
    labels: tuple[str, ...] = Field((), description="The labels; left out, those of the training table.")
    main_metric: Literal["f1_micro", "f1_macro", "exact_match"] = Field(
        "f1_micro", description="By which runs are compared."
    )


class MultipleChoiceConfig(TaskConfig):
    """One of several texts that may go on from another, laid out as SWAG or RACE."""

    kind: Literal["multiple_choice"] = Field("multiple_choice", description="What the task is.")
    header: bool = Field(True, description="The first line of a .tsv or .csv names the columns.")
    context: str = Field("sent1", description="Column of the text that is read first.")
    question: str | None = Field("sent2", description="Column of the text before each choice, if there is one.")
    choices: tuple[str, ...] = Field(
        ("ending0", "ending1", "ending2", "ending3"),
        min_length=1,
        description="A column for each choice, or one field of a JSON object that lists them.",
    )
    label: str = Field("label", description="Column of the right choice, a number from 0 or a letter from A.")


class SentenceEmbeddingConfig(TaskConfig):
    """A vector for each text, learnt from pairs of texts."""

    kind: Literal["sentence_embedding"] = Field("sentence_embedding", description="What the task is.")
    objective: Literal["contrastive", "cosine"] = Field(
        "contrastive", description="The texts of a row belong together, or have a score that their cosine is to be."
    )
    header: bool = Field(True, description="The first line of a .tsv or .csv names the columns.")
    text: str = Field("text", description="Column of the first text: a name, or a number from 0.")
    text_pair: str = Field("text_pair", description="Column of the second text.")
    label: str = Field("label", description="Column of the score, for the objective `cosine`.")
    lowest: float = Field(0.0, description="Score of texts that are not alike: a cosine of 0.")
    highest: float = Field(1.0, description="Score of texts that say the same: a cosine of 1.")
    scale: float = Field(
        20.0, gt=0, description="What cosines are multiplied by in the objective `contrastive`; 1 / temperature."
    )
    pooling: Literal["mean", "cls", "max"] | None = Field(
        None, description="What makes one vector of the tokens; left out, as the model has it, or the mean."
    )
    normalize: bool | None = Field(None, description="Vectors have length 1; left out, as the model has it, or yes.")
    main_metric: Literal["mrr", "accuracy", "spearman", "pearson"] | None = Field(
        None, description="By which runs are compared; left out, `mrr` of pairs and `spearman` of scores."
    )


class TokenClassificationConfig(TaskConfig):
    """A tag for each word: CoNLL columns, or .jsonl with `words` and `tags`."""

    kind: Literal["token_classification"] = Field("token_classification", description="What the task is.")
    word_column: int | Literal["last"] = Field(0, description="Column of the word, from 0.")
    tag_column: int | Literal["last"] = Field("last", description="Column of the tag, from 0.")
    scheme: Literal["IOB1", "IOB2", "BIOES", "plain"] | None = Field(
        None, description="How tags make spans; left out, it is found out."
    )
    stride: int | None = Field(
        None, ge=1, description="Pieces from one window of a long sentence to the next; left out, half a window."
    )
    strict: bool = Field(False, description="Count spans as seqeval's strict mode does, not as conlleval.")
    main_metric: Literal["precision", "recall", "f1", "accuracy"] = Field(
        "f1", description="By which runs are compared; for plain tags always accuracy."
    )


class QuestionAnsweringConfig(TaskConfig):
    """The span of a text that answers a question: SQuAD's JSON, or .jsonl."""

    kind: Literal["question_answering"] = Field("question_answering", description="What the task is.")
    stride: int = Field(128, ge=1, description="Pieces from the start of one window of a long text to the next.")
    max_question_tokens: int = Field(64, ge=1, description="Pieces of a question; a longer one loses its end.")
    max_answer_tokens: int = Field(30, ge=1, description="Pieces of an answer, at most.")
    n_best: int = Field(20, ge=1, description="Answers that a prediction lists, at most.")
    null_threshold: float | None = Field(
        None, description="By how much no answer must score above the best one; left out, each question has an answer."
    )
    main_metric: Literal["f1", "exact"] = Field("f1", description="By which runs are compared.")


TASKS = {
    task.model_fields["kind"].default: task
    for task in (
        ClassificationConfig,
        RegressionConfig,
        MultiLabelConfig,
        MultipleChoiceConfig,
        SentenceEmbeddingConfig,
        TokenClassificationConfig,
        QuestionAnsweringConfig,
    )
}


def kind_of(task: Any) -> str:
    """Return the kind of a task's settings, or of what is to become such; by default the first."""
    first = next(iter(TASKS))
    return task.get("kind", first) if isinstance(task, dict) else getattr(task, "kind", first)


TAGGED = [Annotated[task, Tag(kind)] for kind, task in TASKS.items()]
AnyTask = Annotated[reduce(or_, TAGGED), Discriminator(kind_of)]
