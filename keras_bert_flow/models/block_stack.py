"""The stack of encoder blocks on top of the embeddings."""

from typing import Any

from keras_bert_flow.by_name import load_by_name
from keras_bert_flow.layers.dense import Dense
from keras_bert_flow.layers.initializers import truncated_normal
from keras_bert_flow.layers.packing import PackTokens, UnpackTokens
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import BLOCK, WIDENING, Family


class BlockStack:
    """The layers of an encoder above its embeddings.

    Args:
        family: the family of the encoder, which defines its blocks.
        shape: the shape of the encoder.
        dtype: a Keras dtype policy.
        prefix: of the layer names, for the second encoder of a model.
    Attributes:
        layers: a block for each layer; layers with the same block share its weights.
        blocks: the distinct blocks, from the lowest up.
        widening: the dense layer below them; None if the embeddings are as wide as the blocks.
    """

    def __init__(self, family: Family, shape: EncoderShape, dtype: Any, prefix: str = ""):
        self.widening = None
        if shape.widens_embeddings:
            initializer = truncated_normal(shape.initializer_range)
            self.widening = Dense(shape.hidden_dim, kernel_initializer=initializer, dtype=dtype, name=prefix + WIDENING)
        self.layers = load_by_name(family.blocks)(shape, dtype, prefix + BLOCK)
        self.blocks = list(dict.fromkeys(self.layers))
        self._packing = PackTokens(dtype=dtype.name, name=f"{prefix}pack_tokens")
        self._unpacking = UnpackTokens(dtype=dtype.name, name=f"{prefix}unpack_tokens")

    def apply(self, embedded: Any, padding_mask: Any) -> tuple[Any, list[Any]]:
        """Return the output of the last layer, (batch, length, hidden), and all hidden states.

        The hidden states are the embeddings and the output of each layer; in training they may be packed.

        Args:
            embedded: output of the embeddings, (batch, length, embedding).
            padding_mask: int, (batch, length). 1 for a real token.
        """
        hidden = embedded if self.widening is None else self.widening(embedded)
        hidden_states = [hidden]
        hidden = self._packing(hidden, padding_mask)
        for block in self.layers:
            hidden = block(hidden, padding_mask)
            hidden_states.append(hidden)
        return self._unpacking(hidden, padding_mask), hidden_states
