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
