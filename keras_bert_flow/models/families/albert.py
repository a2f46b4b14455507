"""ALBERT: narrow embeddings that a dense layer widens, and layers that share their weights.

Source: Lan et al. 2020, sections 3.1 and 4.1; arXiv:1909.11942.
"""

from dataclasses import dataclass

from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import Family


@dataclass(frozen=True)
class AlbertShape(EncoderShape):
    """That of BERT, with embeddings of another width and fewer blocks than layers.

    Attributes:
        embedding_dim: width of the embeddings.
        num_groups: blocks with weights of their own; layers that follow each other share one.
    """

    hidden_act: str = "gelu_tanh"
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    embedding_dim: int = 128
    num_groups: int = 1

    def __post_init__(self):
        super().__post_init__()
        if not 1 <= self.num_groups <= self.num_layers:
            raise ValueError(
                f"`num_groups` must be from 1 to `num_layers`. Received: num_groups={self.num_groups}, "
                f"num_layers={self.num_layers}. Try 1."
            )

    @property
    def widens_embeddings(self) -> bool:
        return True

    @property
    def num_blocks(self) -> int:
        return self.num_groups


FAMILY = Family("albert", "ALBERT", AlbertShape)
