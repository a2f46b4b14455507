"""Settings of the tasks on whole texts."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from keras_bert_flow.tasks.core.settings import COMPARED, Header, TaskSettings


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
