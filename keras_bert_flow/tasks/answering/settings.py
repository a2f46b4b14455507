"""Settings of question answering."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from keras_bert_flow.tasks.core.settings import COMPARED, TaskSettings


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
