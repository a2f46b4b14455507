"""Settings of token classification."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from keras_bert_flow.tasks.core.settings import COMPARED, TaskSettings


@dataclass(frozen=True)
class TokenClassificationSettings(TaskSettings):
    """A tag for each word: CoNLL columns, or .jsonl with `words` and `tags`."""

    kind: ClassVar[str] = "token_classification"

    word_column: Annotated[int | Literal["last"], Field(description="Column of the word, from 0.")] = 0
    tag_column: Annotated[int | Literal["last"], Field(description="Column of the tag, from 0.")] = "last"
    scheme: Annotated[
        Literal["IOB1", "IOB2", "BIOES", "plain"] | None,
        Field(description="How tags make spans; left out, it is found out."),
    ] = None
    stride: Annotated[
        int | None,
        Field(ge=1, description="Pieces from one window of a long sentence to the next; left out, half a window."),
    ] = None
    strict: Annotated[bool, Field(description="Count spans as seqeval's strict mode does, not as conlleval.")] = False
    main_metric: Annotated[
        Literal["precision", "recall", "f1", "accuracy"],
        Field(description=f"{COMPARED}; for plain tags always accuracy."),
    ] = "f1"
