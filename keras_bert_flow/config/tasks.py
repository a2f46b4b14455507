"""Section `task`: one frozen model a kind of task, made from the settings of that kind; `kind` chooses."""

import re
from dataclasses import fields
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from pydantic import Discriminator, Field, Tag, create_model, model_validator

from keras_bert_flow.config.settings import BUILTIN, Settings
from keras_bert_flow.tasks.answering.settings import QuestionAnsweringSettings
from keras_bert_flow.tasks.choice.settings import MultipleChoiceSettings
from keras_bert_flow.tasks.classification.settings import (
    ClassificationSettings,
    MultiLabelSettings,
    RegressionSettings,
)
from keras_bert_flow.tasks.core.settings import TaskSettings
from keras_bert_flow.tasks.embedding.settings import SentenceEmbeddingSettings
from keras_bert_flow.tasks.tagging.settings import TokenClassificationSettings


class TaskConfig(Settings):
    """What every kind of task has."""

    name: str = Field(BUILTIN, description="Name shown in the report; `builtin` is the docstring task.")
    train: str = Field(BUILTIN, description="Training file, local or at s3:// and the like; or `builtin`.")
    dev: str = Field(BUILTIN, description="Evaluation file, in the same format; or `builtin`.")
    extra_dev: dict[str, str] = Field(
        {}, description="Name → further evaluation file, measured at the end; only `dev` selects models."
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


SETTINGS = (
    ClassificationSettings,
    RegressionSettings,
    MultiLabelSettings,
    MultipleChoiceSettings,
    SentenceEmbeddingSettings,
    TokenClassificationSettings,
    QuestionAnsweringSettings,
)


def _make_section(settings: type[TaskSettings]) -> type[TaskConfig]:
    """Return the section `task` of one kind: what every kind has, and its own settings."""
    hints = get_type_hints(settings, include_extras=True)
    own: dict[str, Any] = {field.name: (hints[field.name], field.default) for field in fields(settings)}
    kind: Any = (Literal[settings.kind], Field(settings.kind, description="Kind of the task."))
    name = settings.__name__.replace("Settings", "Config")
    return create_model(name, __base__=TaskConfig, __doc__=settings.__doc__, kind=kind, **own)


TASKS = {settings.kind: _make_section(settings) for settings in SETTINGS}
POOLED = tuple(settings.kind for settings in SETTINGS if settings.is_pooled)


def kind_of(task: Any) -> str:
    """Return the kind of a task's settings, or of what is to become such; by default the first."""
    first = next(iter(TASKS))
    return task.get("kind", first) if isinstance(task, dict) else getattr(task, "kind", first)


TAGGED = [Annotated[task, Tag(kind)] for kind, task in TASKS.items()]
if TYPE_CHECKING:  # a union that a table makes is no type to a checker
    AnyTask = TaskConfig
else:
    AnyTask = Annotated[reduce(or_, TAGGED), Discriminator(kind_of)]
