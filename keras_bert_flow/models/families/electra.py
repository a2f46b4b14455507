"""ELECTRA: BERT's encoder with embeddings that may be narrower than the blocks, and no pooler.

Source: Clark et al. 2020, section 3; arXiv:2003.10555.
"""

from dataclasses import dataclass

from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import Family


@dataclass(frozen=True)
class ElectraShape(EncoderShape):
    """Shape of ELECTRA: BERT with another embedding width; heads for whole texts use dense and GELU as the pooler.

    Attributes:
        embedding_dim: width of the embeddings; a dense layer projects them to the width of the blocks if that differs.
    """

    embedding_dim: int = 128

    @property
    def pooler_act(self) -> str:
        return "gelu"


FAMILY = Family("electra", "ELECTRA", ElectraShape, has_pooler=False, has_sentence_task=False)
