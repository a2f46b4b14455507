"""Multi-head self-attention with a padding mask."""

from functools import partial

import keras
from keras import ops

from keras_bert_flow.backends.dropout import drop_values
from keras_bert_flow.backends.fusion import fuse
from keras_bert_flow.backends.products import matmul
from keras_bert_flow.backends.split_heads import split_heads
from keras_bert_flow.backends.token_packing import is_packed, map_rows
from keras_bert_flow.layers.dropout import Dropout
from keras_bert_flow.layers.query_key_value import QueryKeyValue
from keras_bert_flow.layers.shaped import ShapedLayer

# Far below any score, yet finite: in a row without real keys it absorbs the scores, and the softmax is uniform instead
# of NaN. google-research/bert adds -10000, which gives the same result wherever there is a real key.
MASKED_SCORE = -1e9


def attention_bias(padding_mask):
    """Convert a padding mask into an additive attention bias.

    Args:
        padding_mask: int or bool, (batch, length). 1 for a real token.
    Returns:
        float32, (batch, 1, 1, length). 0 for a real key, `MASKED_SCORE` for padding.
    """
    is_real = ops.expand_dims(ops.cast(padding_mask, "bool"), (1, 2))
    return ops.where(is_real, 0.0, MASKED_SCORE)


def masked_softmax(scores, padding_mask):
    """Return the softmax over the real keys, computed in float32 and cast to the dtype of the scores.

    Args:
        scores: float, (batch, heads, query, key).
        padding_mask: int or bool, (batch, key). 1 for a real token.
    """
    bias = attention_bias(padding_mask)
    if keras.backend.standardize_dtype(scores.dtype) == "bfloat16":
        # Half the bytes of a float32 sum, and exact: a real key adds 0. float16 cannot represent the bias of padding.
        scores, bias = scores + ops.cast(bias, "bfloat16"), 0.0
        if keras.backend.backend() == "torch":
            return ops.softmax(scores, axis=-1)  # float32 internally, without the copies that casts would make
    return ops.cast(ops.softmax(ops.cast(scores, "float32") + bias, axis=-1), scores.dtype)


@fuse
def softmax_and_drop(scores, padding_mask, seed, dropped):
    """Apply `masked_softmax`, then dropout; the last two arguments are those of `drop_values`."""
    return drop_values(masked_softmax(scores, padding_mask), seed, dropped)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class MultiHeadSelfAttention(ShapedLayer):
    """Multi-head self-attention from every token to the real tokens of its row.

    Query, key and value are one fused projection; see `QueryKeyValue`.

    Call arguments:
        inputs: float, (batch, length, hidden), or packed tokens, (tokens, hidden); see `PackTokens`.
        padding_mask: int or bool, (batch, length). 1 for a real token; masks keys, never queries.
    Returns:
        float, the shape of the inputs.
    Source: Vaswani et al. 2017, section 3.2; arXiv:1706.03762.
    """

    def __init__(self, shape, **kwargs):
        super().__init__(shape, **kwargs)
        self.query_key_value = self.make_dense(
            3 * self.shape.hidden_dim, "query_key_value", kind=QueryKeyValue, num_heads=self.shape.num_heads
        )
        self.dropout = Dropout(self.shape.attention_dropout_rate, dtype=self.dtype_policy, name="dropout")
        self.output_dense = self.make_dense(self.shape.hidden_dim, "output")

    def build(self, inputs_shape, padding_mask_shape=None):
        batch, length, _ = inputs_shape
        self.query_key_value.build(inputs_shape)
        self.dropout.build((batch, self.shape.num_heads, length, length))
        self.output_dense.build((batch, length, self.shape.hidden_dim))

    def call(self, inputs, padding_mask, training=None):
        fused = self.query_key_value(inputs)
        attend = partial(self._attend, training=training)
        context = map_rows(attend, fused, padding_mask) if is_packed(inputs) else attend(fused, padding_mask)
        return self.output_dense(context)

    def _attend(self, fused, padding_mask, training):
        """Return the attention output, (batch, length, hidden), from the fused query, key and value."""
        length = ops.shape(fused)[1]
        query, key, value = split_heads(fused, length, self.shape.num_heads, self.shape.head_dim)
        scores = matmul(query * self.shape.head_dim**-0.5, ops.swapaxes(key, -1, -2))  # (batch, heads, query, key)
        if training and self.shape.attention_dropout_rate > 0:
            probabilities = softmax_and_drop(scores, padding_mask, *self.dropout.draw())
        else:
            probabilities = masked_softmax(scores, padding_mask)
        context = matmul(probabilities, value)  # (batch, heads, query, head_dim)
        return ops.reshape(ops.transpose(context, (0, 2, 1, 3)), (-1, length, self.shape.hidden_dim))

    def compute_output_shape(self, inputs_shape, padding_mask_shape=None):
        return inputs_shape
