"""Settings of sentence embedding."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from keras_bert_flow.tasks.core.settings import COMPARED, Header, TaskSettings


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
