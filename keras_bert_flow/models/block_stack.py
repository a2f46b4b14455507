"""Put the blocks of an encoder on its embeddings."""

from dataclasses import dataclass
from typing import Any

from keras_bert_flow.by_name import load_by_name
from keras_bert_flow.layers.dense import Dense
from keras_bert_flow.layers.initializers import truncated_normal
from keras_bert_flow.layers.packing import PackTokens, UnpackTokens
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import BLOCK, WIDENING, Family


@dataclass(frozen=True)
class BlockStack:
    """The layers of an encoder above its embeddings, applied.

    Attributes:
        blocks: each once, from the lowest up.
        widening: the dense layer below them; None where the embeddings are as wide as the blocks.
        hidden_states: outputs of the embeddings and of each layer, (batch, length, hidden), packed in training.
        sequence: output of the last layer, (batch, length, hidden).
    """

    blocks: list[Any]
    widening: Any
    hidden_states: list[Any]
    sequence: Any


def stack_blocks(family: Family, shape: EncoderShape, dtype: Any, embedded: Any, padding_mask: Any, prefix: str = ""):
    """Apply new blocks, and return a `BlockStack`.

    Args:
        family: what the blocks are of.
        shape: how wide and how many they are.
        dtype: a Keras dtype policy.
        embedded: output of the embeddings, (batch, length, embedding).
        padding_mask: int, (batch, length). 1 for a real token.
        prefix: of the names of layers, of the second encoder of a model.
    """
    widening = None
    if shape.widens_embeddings:
        initializer = truncated_normal(shape.initializer_range)
        widening = Dense(shape.hidden_dim, kernel_initializer=initializer, dtype=dtype, name=prefix + WIDENING)
    hidden = embedded if widening is None else widening(embedded)
    hidden_states = [hidden]
    hidden = PackTokens(dtype=dtype.name, name=f"{prefix}pack_tokens")(hidden, padding_mask)
    layers = load_by_name(family.blocks)(shape, dtype, prefix + BLOCK)
    for block in layers:
        hidden = block(hidden, padding_mask)
        hidden_states.append(hidden)
    sequence = UnpackTokens(dtype=dtype.name, name=f"{prefix}unpack_tokens")(hidden, padding_mask)
    return BlockStack(list(dict.fromkeys(layers)), widening, hidden_states, sequence)
