"""ELECTRA: BERT's encoder with embeddings that may be narrower than its blocks, and without a pooler.

Source: Clark et al. 2020, section 3; arXiv:2003.10555.
"""

from dataclasses import dataclass

from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import Family


@dataclass(frozen=True)
class ElectraShape(EncoderShape):
    """That of BERT with embeddings of another width; heads for whole texts have a dense layer with a GELU for a pooler.

    Attributes:
        embedding_dim: width of the embeddings, which a dense layer widens where the blocks are wider.
    """

    embedding_dim: int = 128

    @property
    def pooler_act(self) -> str:
        return "gelu"


FAMILY = Family("electra", "ELECTRA", ElectraShape, has_pooler=False, has_sentence_task=False)
