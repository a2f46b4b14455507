"""ALBERT: factorized embeddings and cross-layer parameter sharing.

Source: Lan et al. 2020, sections 3.1 and 4.1; arXiv:1909.11942.
"""

from dataclasses import dataclass

from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import Family

# Parts shared by all blocks, if whole blocks are not shared
SHARED_PARTS = {"all": (), "attention": ("attention",), "feed_forward": ("intermediate", "output")}


@dataclass(frozen=True)
class AlbertShape(EncoderShape):
    """Shape of ALBERT: BERT with another embedding width and fewer blocks than layers.

    Attributes:
        embedding_dim: width of the embeddings.
        num_groups: number of blocks with their own weights; consecutive layers share one.
        sharing: what the layers share: `all` weights of a block within a group, or with one block per layer only
            `attention` or `feed_forward` (section 4.5, table 4).
    """

    hidden_act: str = "gelu_tanh"
    dropout_rate: float = 0.0
    attention_dropout_rate: float = 0.0
    embedding_dim: int = 128
    num_groups: int = 1
    sharing: str = "all"
    projects_embeddings = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.num_groups <= self.num_layers:
            raise ValueError(
                f"`num_groups` must be from 1 to `num_layers`. Received: num_groups={self.num_groups}, "
                f"num_layers={self.num_layers}. Try 1."
            )

        if self.sharing not in SHARED_PARTS:
            raise ValueError(f"`sharing` must be one of {', '.join(SHARED_PARTS)}. Received: sharing={self.sharing!r}.")
        if self.shared_parts and self.num_groups != self.num_layers:
            raise ValueError(
                f"With sharing={self.sharing} each layer must have a block of its own. Received: "
                f"num_groups={self.num_groups}, num_layers={self.num_layers}. Set num_groups to {self.num_layers}."
            )

    @property
    def shared_parts(self) -> tuple[str, ...]:  # type: ignore[override]  # a constant of the other families
        return SHARED_PARTS[self.sharing]

    @property
    def num_blocks(self) -> int:
        return self.num_groups


ALBERT = Family("albert", "ALBERT", AlbertShape)
