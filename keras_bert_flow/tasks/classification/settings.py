"""Settings of the tasks on whole texts."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from keras_bert_flow.tasks.core.settings import COMPARED, Header, Label, TaskSettings, Text, TextPair


@dataclass(frozen=True)
class ClassificationSettings(TaskSettings):
    """One of several classes for each text."""

    kind: ClassVar[str] = "classification"
    is_pooled: ClassVar[bool] = True

    text: Text = "text"
    text_pair: TextPair = None
    label: Label = "label"
    header: Header = True
    main_metric: Annotated[
        Literal["accuracy", "f1", "f1_positive", "matthews"],
        Field(description=f"{COMPARED}; `f1` is the classes' mean, `f1_positive` the second's."),
    ] = "accuracy"
    labels: Annotated[tuple[str, ...], Field(description="The classes; left out, those of the training table.")] = ()


@dataclass(frozen=True)
class RegressionSettings(TaskSettings):
    """A number for each text."""

    kind: ClassVar[str] = "regression"
    is_pooled: ClassVar[bool] = True

    text: Text = "text"
    text_pair: TextPair = None
    label: Label = "label"
    header: Header = True
    main_metric: Annotated[Literal["pearson", "spearman"], Field(description=f"{COMPARED}.")] = "spearman"
    lowest: Annotated[float | None, Field(description="Lowest number there can be; predictions are cut to it.")] = None
    highest: Annotated[float | None, Field(description="Highest number there can be; predictions are cut to it.")] = (
        None
    )


@dataclass(frozen=True)
class MultiLabelSettings(TaskSettings):
    """Any number of labels for each text."""

    kind: ClassVar[str] = "multi_label"
    is_pooled: ClassVar[bool] = True

    text: Text = "text"
    text_pair: TextPair = None
    label: Label = "label"
    separator: Annotated[str, Field(min_length=1, description="Between two labels of one column.")] = "|"
    label_columns: Annotated[
        tuple[str, ...], Field(description="A column of 0 and 1 for each label, in place of `label`.")
    ] = ()
    threshold: Annotated[float, Field(gt=0, lt=1, description="Probability from which on a label is given.")] = 0.5
    header: Header = True
    main_metric: Annotated[Literal["f1_micro", "f1_macro", "exact_match"], Field(description=f"{COMPARED}.")] = (
        "f1_micro"
    )
    labels: Annotated[tuple[str, ...], Field(description="The labels; left out, those of the training table.")] = ()
