"""RoBERTa: BERT without segments, with positions that start after the id of the padding token.

Source: Liu et al. 2019, arXiv:1907.11692; fairseq, learned_positional_embedding.py, the origin of the position offset.
"""

from dataclasses import dataclass

from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import Family


@dataclass(frozen=True)
class RobertaShape(EncoderShape):
    """Shape of RoBERTa: BERT with the id of the padding token.

    Attributes:
        pad_token_id: 1 in the released checkpoints, 0 in our vocabularies. The position of the first token is one more.
    """

    num_segments: int = 1
    layer_norm_epsilon: float = 1e-5
    pad_token_id: int = 0

    @property
    def position_offset(self) -> int:
        return self.pad_token_id + 1


FAMILY = Family("roberta", "RoBERTa", RobertaShape, has_sentence_task=False)
