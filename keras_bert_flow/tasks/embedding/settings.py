"""Settings of sentence embedding."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from keras_bert_flow.tasks.core.settings import COMPARED, Header, TaskSettings


@dataclass(frozen=True)
class SentenceEmbeddingSettings(TaskSettings):
    """A vector for each text, learnt from pairs of texts."""

    kind: ClassVar[str] = "sentence_embedding"

    objective: Annotated[
        Literal["contrastive", "cosine"],
        Field(description="The texts of a row belong together, or have a score that their cosine is to be."),
    ] = "contrastive"
    text: Annotated[str, Field(description="Column of the first text: a name, or a number from 0.")] = "text"
    text_pair: Annotated[str, Field(description="Column of the second text.")] = "text_pair"
    label: Annotated[str, Field(description="Column of the score, for the objective `cosine`.")] = "label"
    header: Header = True
    lowest: Annotated[float, Field(description="Score of texts that are not alike: a cosine of 0.")] = 0.0
    highest: Annotated[float, Field(description="Score of texts that say the same: a cosine of 1.")] = 1.0
    scale: Annotated[
        float,
        Field(gt=0, description="What cosines are multiplied by in the objective `contrastive`; 1 / temperature."),
    ] = 20.0
    pooling: Annotated[
        Literal["mean", "cls", "max"] | None,
        Field(description="What makes one vector of the tokens; left out, as the model has it, or the mean."),
    ] = None
    normalize: Annotated[
        bool | None, Field(description="Vectors have length 1; left out, as the model has it, or yes.")
    ] = None
    main_metric: Annotated[
        Literal["mrr", "accuracy", "spearman", "pearson"] | None,
        Field(description=f"{COMPARED}; left out, `mrr` of pairs and `spearman` of scores."),
    ] = None
