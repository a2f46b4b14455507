"""DistilBERT: BERT without segments and pooler, trained by distillation.

Source: Sanh et al. 2019, section 3; arXiv:1910.01108.
"""

from dataclasses import dataclass
from typing import ClassVar

from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import Family


@dataclass(frozen=True)
class DistilBertShape(EncoderShape):
    """Shape of DistilBERT: BERT without segments; heads for whole texts use dense and ReLU as the pooler."""

    # Constants: its `config.json` has no fields for them.
    num_segments: ClassVar[int] = 0  # type: ignore[misc]  # no field, so no argument either
    layer_norm_epsilon: ClassVar[float] = 1e-12  # type: ignore[misc]

    @property
    def pooler_act(self) -> str:
        return "relu"


FAMILY = Family("distilbert", "DistilBERT", DistilBertShape, has_pooler=False, has_sentence_task=False)
