"""What sets one family of encoders apart from another."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from keras_bert_flow.layers.shape import EncoderShape

BLOCK = "encoder_block_"  # name of a block, which its number follows
WIDENING = "widening"  # the dense layer where embeddings are narrower than blocks
CUT = "model"  # axis of a weight that is cut over the devices of one copy of the model

# Whole attention heads go to each device: the columns of `query_key_value` are ordered (heads, 3, head_dim), the rows
# of the product behind them (heads, head_dim). So do columns and rows of the two layers of the feed-forward: a device
# meets the others only to add up after each second product.
# Source: Shoeybi et al. 2020 (Megatron-LM), section 3; arXiv:1909.08053.
ENCODER_CUTS = {
    "attention/query_key_value/kernel": (None, CUT),
    "attention/query_key_value/bias": (CUT,),
    "attention/output/kernel": (CUT, None),
    "intermediate/kernel": (None, CUT),
    "intermediate/bias": (CUT,),
    "output/kernel": (CUT, None),
}


@dataclass(frozen=True)
class Family:
    """A family of encoders: parts by name, `module:name`, which are loaded where a model is built.

    Attributes:
        name: `model_type` of Hugging Face.
        title: the name in texts.
        shape: sizes and rates, and what they are by default.
        embeddings: a layer made from the shape; maps token embeddings, float, (batch, length, embedding), and segment
            ids, int, (batch, length), to float, (batch, length, hidden).
        blocks: a function of the shape, the dtype and a name that returns a block for each layer, one behind the other;
            the same block twice shares its weights.
        pooler: a layer made from the shape; maps (batch, length, hidden) to (batch, hidden).
        has_pooler: whether an encoder without a head has one.
        has_sentence_task: whether it is pre-trained on pairs of sentences, too.
        cuts: how the weights of a block are cut over devices: path in the block → axes.
    """

    name: str
    title: str
    shape: type[EncoderShape] = EncoderShape
    embeddings: str = "keras_bert_flow.layers.embeddings:BertEmbeddings"
    blocks: str = "keras_bert_flow.layers.encoder:make_blocks"
    pooler: str = "keras_bert_flow.layers.heads:Pooler"
    has_sentence_task: bool = True
    has_pooler: bool = True
    cuts: Mapping[str, tuple] = field(default_factory=lambda: ENCODER_CUTS)
