"""Definition of an encoder family, and the registry of families."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from keras_bert_flow.by_name import Registry
from keras_bert_flow.layers.shape import EncoderShape

BLOCK = "encoder_block_"  # prefix of the name of a block, followed by its number
# The dense layer between embeddings and blocks of another width. Weight paths contain the name.
EMBEDDING_PROJECTION = "widening"
MODEL_AXIS = "model"  # mesh axis that weights are sharded over, among the devices of one copy of the model

# Each device gets whole attention heads: the columns of `query_key_value` are ordered (heads, 3, head_dim), the rows
# of the output projection (heads, head_dim). The feed-forward is likewise sharded by columns, then rows. So devices
# communicate only for a sum after each second product.
# Source: Shoeybi et al. 2020 (Megatron-LM), section 3; arXiv:1909.08053.
ENCODER_SHARDING = {
    "attention/query_key_value/kernel": (None, MODEL_AXIS),
    "attention/query_key_value/bias": (MODEL_AXIS,),
    "attention/output/kernel": (MODEL_AXIS, None),
    "intermediate/kernel": (None, MODEL_AXIS),
    "intermediate/bias": (MODEL_AXIS,),
    "output/kernel": (MODEL_AXIS, None),
}


@dataclass(frozen=True)
class Family:
    """A family of encoders, with its parts by name, `module:name`, which are loaded when a model is built.

    Attributes:
        name: `model_type` of Hugging Face.
        title: display name.
        shape: class of sizes and rates, with their defaults.
        embeddings: a layer class with the shape as argument; maps token embeddings, float, (batch, length, embedding),
            segment ids and `padding_mask`, int, (batch, length), to float, (batch, length, hidden).
        blocks: a function of the shape, the dtype and a name that returns the block of each layer in order; layers with
            the same block share its weights. A block maps hidden states, `padding_mask` and the `attention_bias` of its
            `pattern` to hidden states.
        relative: a layer class with the shape as argument, for shapes with `num_relative_rows`; returns the vectors of
            relative positions, float, (rows, hidden), which each block takes as `relative`.
        pooler: a layer class with the shape as argument; maps (batch, length, hidden) to (batch, hidden).
        has_sentence_task: whether its pre-training also has a sentence-pair task.
        has_pooler: whether an encoder without a head has a pooler.
        sharding: how the weights of a block are sharded over devices: path in the block → mesh axes.
    """

    name: str
    title: str
    shape: type[EncoderShape] = EncoderShape
    embeddings: str = "keras_bert_flow.layers.embeddings:BertEmbeddings"
    blocks: str = "keras_bert_flow.layers.encoder:make_blocks"
    relative: str = ""
    pooler: str = "keras_bert_flow.layers.heads:Pooler"
    has_sentence_task: bool = True
    has_pooler: bool = True
    sharding: Mapping[str, tuple] = field(default_factory=lambda: ENCODER_SHARDING)


# Registry of encoder families by name.

FAMILIES: Registry[Family] = Registry(
    "A family",
    {
        "albert": "keras_bert_flow.models.families.bert:ALBERT",
        "bert": "keras_bert_flow.models.families.bert:BERT",
        "deberta-v2": "keras_bert_flow.models.families.deberta:DEBERTA_V2",
        "distilbert": "keras_bert_flow.models.families.bert:DISTILBERT",
        "electra": "keras_bert_flow.models.families.bert:ELECTRA",
        "mobilebert": "keras_bert_flow.models.families.mobilebert:MOBILEBERT",
        "modernbert": "keras_bert_flow.models.families.modernbert:MODERNBERT",
        "roberta": "keras_bert_flow.models.families.bert:ROBERTA",
    },
)
DEFAULT = "bert"
find_family = FAMILIES.find
