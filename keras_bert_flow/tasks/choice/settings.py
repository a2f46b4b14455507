"""Settings of multiple choice."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from keras_bert_flow.tasks.core.settings import Header, TaskSettings


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
