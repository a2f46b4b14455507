"""BERT and the families that differ from it in a few settings: RoBERTa, ELECTRA, DistilBERT and ALBERT.

Source: Devlin et al. 2019; arXiv:1810.04805.
"""

from dataclasses import dataclass
from typing import ClassVar

from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import Family

BERT = Family("bert", "BERT")


# DistilBERT: BERT without segments and pooler, trained by distillation.
#
# Source: Sanh et al. 2019, section 3; arXiv:1910.01108.


@dataclass(frozen=True)
class DistilBertShape(EncoderShape):
    """Shape of DistilBERT: BERT without segments; heads for whole texts use dense and ReLU as the pooler."""

    # Constants: its `config.json` has no fields for them.
    num_segments: ClassVar[int] = 0  # type: ignore[misc]  # no field, so no argument either
    layer_norm_epsilon: ClassVar[float] = 1e-12  # type: ignore[misc]
    pooler_act: ClassVar[str] = "relu"


DISTILBERT = Family("distilbert", "DistilBERT", DistilBertShape, has_pooler=False, has_sentence_task=False)


# ELECTRA: BERT's encoder with embeddings that may be narrower than the blocks, and no pooler.
#
# Source: Clark et al. 2020, section 3; arXiv:2003.10555.


@dataclass(frozen=True)
class ElectraShape(EncoderShape):
    """Shape of ELECTRA: BERT with another embedding width; heads for whole texts use dense and GELU as the pooler.

    Attributes:
        embedding_dim: width of the embeddings; a dense layer projects them to the width of the blocks if that differs.
    """

    embedding_dim: int = 128
    pooler_act: ClassVar[str] = "gelu"


ELECTRA = Family("electra", "ELECTRA", ElectraShape, has_pooler=False, has_sentence_task=False)


# RoBERTa: BERT without segments, with positions that start after the id of the padding token.
#
# Source: Liu et al. 2019, arXiv:1907.11692; fairseq, learned_positional_embedding.py, the origin of the position
# offset.


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
    def position_offset(self) -> int:  # type: ignore[override]  # a constant of the other families
        return self.pad_token_id + 1


ROBERTA = Family("roberta", "RoBERTa", RobertaShape, has_sentence_task=False)


# ALBERT: factorized embeddings and cross-layer parameter sharing.
#
# Source: Lan et al. 2020, sections 3.1 and 4.1; arXiv:1909.11942.

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
