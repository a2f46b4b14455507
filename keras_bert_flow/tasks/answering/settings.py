"""Settings of question answering."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from keras_bert_flow.tasks.core.settings import COMPARED, TaskSettings


@dataclass(frozen=True)
class QuestionAnsweringSettings(TaskSettings):
    """The span of a text that answers a question: SQuAD's JSON, or .jsonl."""

    kind: ClassVar[str] = "question_answering"

    stride: Annotated[
        int, Field(ge=1, description="Pieces from the start of one window of a long text to the next.")
    ] = 128
    max_question_tokens: Annotated[
        int, Field(ge=1, description="Pieces of a question; a longer one loses its end.")
    ] = 64
    max_answer_tokens: Annotated[int, Field(ge=1, description="Pieces of an answer, at most.")] = 30
    n_best: Annotated[int, Field(ge=1, description="Answers that a prediction lists, at most.")] = 20
    null_threshold: Annotated[
        float | None,
        Field(
            description="By how much no answer must score above the best one; left out, each question has an answer."
        ),
    ] = None
    main_metric: Annotated[Literal["f1", "exact"], Field(description=f"{COMPARED}.")] = "f1"
