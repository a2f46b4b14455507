"""RoBERTa: BERT without segments, whose positions are counted from behind the number of the padding token.

Source: Liu et al. 2019, arXiv:1907.11692; fairseq, learned_positional_embedding.py, where the first rows came about.
"""

from dataclasses import dataclass

from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import Family


@dataclass(frozen=True)
class RobertaShape(EncoderShape):
    """That of BERT, and the padding token.

    Attributes:
        pad_token_id: 1 in the released checkpoints, 0 in our vocabularies. The first token has the position after it.
    """

    num_segments: int = 1
    layer_norm_epsilon: float = 1e-5
    pad_token_id: int = 0

    @property
    def position_offset(self) -> int:
        return self.pad_token_id + 1


FAMILY = Family("roberta", "RoBERTa", RobertaShape, has_sentence_task=False)
