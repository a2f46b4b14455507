"""Layers of MobileBERT and IB-BERT: a norm without statistics, trigram embeddings, and the block with bottlenecks.

Source: Sun et al. 2020; arXiv:2004.02984; google-research/google-research, mobilebert/modeling.py.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.kernels import call_of
from keras_bert_flow.backends.values import Shape, Tensor, has_packed_rows
from keras_bert_flow.layers.attention import MultiHeadSelfAttention
from keras_bert_flow.layers.dense import Dense, ShapedLayer, get_activation
from keras_bert_flow.layers.embeddings import PositionedEmbeddings
from keras_bert_flow.layers.encoder import Block
from keras_bert_flow.layers.patterns import FULL, LEARNED, Full, Learned
from keras_bert_flow.layers.shape import EncoderShape


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class NoNorm(keras.layers.Layer):
    """Scale and shift each value, in place of a layer norm: (..., units) → (..., units).

    The weights are named as those of a layer norm, so weight decay passes them over too.

    Source: Sun et al. 2020, section 3, "Operational optimizations".
    """

    def build(self, inputs_shape: Shape) -> None:
        self.gamma = self.add_weight(shape=(inputs_shape[-1],), initializer="ones", name="gamma")
        self.beta = self.add_weight(shape=(inputs_shape[-1],), initializer="zeros", name="beta")

    def call(self, inputs: Tensor) -> Tensor:
        return inputs * self.gamma + self.beta

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape


# `transformers` gives the norms of the embeddings and of the last feed-forward no epsilon: PyTorch's default holds.
DEFAULT_EPSILON = 1e-5


def make_norm(layer: ShapedLayer, name: str, epsilon: float | None = None) -> keras.layers.Layer:
    """Return a `NoNorm`, or a layer norm where the shape of a layer has these; default epsilon: that of the encoder."""
    if layer.shape.normalization == "no_norm":
        return NoNorm(dtype=layer.dtype_policy, name=name)
    return layer.make_layer_norm(name, epsilon)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TrigramEmbeddings(PositionedEmbeddings):
    """Project the embeddings of each token and its two neighbours, add segments and positions, then norm, dropout.

    Beyond the ends of a row, and in another text of a packed row, there is no neighbour: its values are 0. Padding is a
    neighbour like any token, as in `transformers`: the last token of a text has other hidden states where [PAD] follows
    than where the row ends.

    Call arguments:
        token_embeddings: float, (batch, length, embedding).
        segment_ids: int, (batch, length).
        padding_mask: int or bool, (batch, length). The number of each token's text in its row, 0 for padding. Without
            it each row is one text.
    Returns:
        float, (batch, length, hidden).
    Source: Sun et al. 2020, section 3, "Embedding factorization".
    """

    def __init__(self, shape: EncoderShape | Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(shape, **kwargs)
        self.projection = self.make_dense(self.shape.hidden_dim, "projection")
        self.norm = make_norm(self, "norm", DEFAULT_EPSILON)
        self.dropout = self.make_dropout("dropout")

    def build(
        self,
        token_embeddings_shape: Shape,
        segment_ids_shape: Shape | None = None,
        padding_mask_shape: Shape | None = None,
    ) -> None:
        hidden_shape = (*token_embeddings_shape[:-1], self.shape.hidden_dim)
        self.projection.build((*token_embeddings_shape[:-1], 3 * self.shape.embedding_dim))
        self.build_tables()
        self.norm.build(hidden_shape)
        self.dropout.build(hidden_shape)

    def call(
        self,
        token_embeddings: Tensor,
        segment_ids: Tensor,
        padding_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        hidden = self.projection(join_neighbours(token_embeddings, padding_mask))
        hidden = self.add_tables(hidden, segment_ids, padding_mask)
        return self.dropout(self.norm(hidden), training=training)

    def compute_output_shape(
        self,
        token_embeddings_shape: Shape,
        segment_ids_shape: Shape | None = None,
        padding_mask_shape: Shape | None = None,
    ) -> Shape:
        return (*token_embeddings_shape[:-1], self.shape.hidden_dim)


def join_neighbours(tokens: Tensor, padding_mask: Tensor | None = None) -> Tensor:
    """Return the values of the next token, of the token and of the one before side by side.

    Args:
        tokens: float, (batch, length, width).
        padding_mask: int or bool, (batch, length). The number of each token's text in its row, 0 for padding.
    Returns:
        float, (batch, length, 3 width). 0 for a neighbour beyond the row or in another text.
    """
    after, before = tokens[:, 1:], tokens[:, :-1]
    if padding_mask is not None and has_packed_rows(padding_mask) is not False:
        numbers = ops.cast(padding_mask, "int32")
        ours, theirs = numbers[:, :-1], numbers[:, 1:]
        is_near = (ours == theirs) | (ours == 0) | (theirs == 0)  # of a token and the next
        is_near = ops.expand_dims(ops.cast(is_near, tokens.dtype), -1)
        after, before = after * is_near, before * is_near
    after, before = ops.pad(after, ((0, 0), (0, 1), (0, 0))), ops.pad(before, ((0, 0), (1, 0), (0, 0)))
    return ops.concatenate([after, tokens, before], axis=-1)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class FeedForward(ShapedLayer):
    """Feed-forward of a bottleneck block with its residual and norm: (..., bottleneck) → (..., bottleneck).

    Args:
        epsilon: of its norm, if it is a layer norm. Default: that of the encoder.
    """

    def __init__(self, shape: EncoderShape | Mapping[str, Any], epsilon: float | None = None, **kwargs: Any) -> None:
        super().__init__(shape, **kwargs)
        self.intermediate: Dense = self.make_dense(self.shape.intermediate_dim, "intermediate")
        self.output_dense: Dense = self.make_dense(self.shape.attention_dim, "output")
        self.epsilon = epsilon
        self.norm = make_norm(self, "norm", epsilon)

    def build(self, inputs_shape: Shape) -> None:
        self.intermediate.build(inputs_shape)
        self.output_dense.build((*inputs_shape[:-1], self.shape.intermediate_dim))
        self.norm.build(inputs_shape)

    def call(self, inputs: Tensor, training: bool | None = None) -> Tensor:
        activation = get_activation(self.shape.hidden_act, is_for_training=bool(training))
        transformed = call_of(self.output_dense)(activation(call_of(self.intermediate)(inputs)))
        return call_of(self.norm)(inputs + transformed)

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return inputs_shape

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"epsilon": self.epsilon}


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BottleneckBlock(Block):
    """Encoder block of MobileBERT and IB-BERT: self-attention and feed-forwards between two linear bottlenecks.

    One bottleneck narrows the inputs for the residuals of the block, another, if there is one, for its queries and
    keys; values are projected from the inputs themselves. At the end the block is widened again, and the inputs are
    added. In an inverted bottleneck the block is the wider part.

    Args:
        pattern, positions: of the attention; see `MultiHeadSelfAttention`.
    Source: Sun et al. 2020, section 3, figure 1 (b) and (c); the dropout of the last projection is that of
        `transformers`, 0 by default.
    """

    def __init__(
        self,
        shape: EncoderShape | Mapping[str, Any],
        pattern: Full | Mapping[str, Any] = FULL,
        positions: Learned | Mapping[str, Any] = LEARNED,
        **kwargs: Any,
    ) -> None:
        super().__init__(shape, pattern, positions, **kwargs)
        narrow, policy = self.shape.attention_dim, self.dtype_policy
        self.input_bottleneck = self.make_dense(narrow, "input_bottleneck")
        self.input_norm = make_norm(self, "input_norm")
        if self.shape.has_query_bottleneck:
            self.attention_bottleneck = self.make_dense(narrow, "attention_bottleneck")
            self.attention_bottleneck_norm = make_norm(self, "attention_bottleneck_norm")
        self.attention = MultiHeadSelfAttention(
            self.shape, self.pattern, self.positions, dtype=policy, name="attention"
        )
        self.attention_norm = make_norm(self, "attention_norm")
        last = self.shape.num_feed_forwards - 1
        self.feed_forwards = [
            FeedForward(
                self.shape, DEFAULT_EPSILON if number == last else None, dtype=policy, name=f"feed_forward_{number}"
            )
            for number in range(self.shape.num_feed_forwards)
        ]
        self.output_bottleneck = self.make_dense(self.shape.hidden_dim, "output_bottleneck")
        self.output_dropout = self.make_dropout("output_dropout")
        self.output_norm = make_norm(self, "output_norm")

    def build(
        self, inputs_shape: Shape, padding_mask_shape: Shape | None = None, bias_shape: Shape | None = None
    ) -> None:
        narrow_shape, query_shape = (*inputs_shape[:-1], self.shape.attention_dim), inputs_shape
        self.input_bottleneck.build(inputs_shape)
        norms = [self.input_norm, self.attention_norm]
        if self.shape.has_query_bottleneck:
            self.attention_bottleneck.build(inputs_shape)
            norms.insert(1, self.attention_bottleneck_norm)
            query_shape = narrow_shape
        self.attention.build(query_shape, padding_mask_shape, values_shape=inputs_shape)
        for norm in norms:
            norm.build(narrow_shape)
        for layer in (*self.feed_forwards, self.output_bottleneck):
            layer.build(narrow_shape)
        self.output_dropout.build(inputs_shape)
        self.output_norm.build(inputs_shape)

    def transform(
        self, inputs: Tensor, padding_mask: Tensor, bias: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        hidden = call_of(self.input_norm)(call_of(self.input_bottleneck)(inputs))
        shared = inputs
        if self.shape.has_query_bottleneck:
            shared = call_of(self.attention_bottleneck_norm)(call_of(self.attention_bottleneck)(inputs))
        attended = call_of(self.attention)(shared, padding_mask, bias, values=inputs, training=training)
        hidden = call_of(self.attention_norm)(hidden + attended)
        for feed_forward in self.feed_forwards:
            hidden = call_of(feed_forward)(hidden, training=training)
        widened = self.output_dropout(call_of(self.output_bottleneck)(hidden), training=training)
        return call_of(self.output_norm)(inputs + widened)

    def list_feed_forward(self) -> list[Dense]:
        return [dense for layer in self.feed_forwards for dense in (layer.intermediate, layer.output_dense)]


def make_bottleneck_blocks(shape: EncoderShape, dtype: Any, name: str) -> list[BottleneckBlock]:
    """Return a block for each layer of an encoder, in order; the arguments of `encoder.make_blocks`."""
    return [
        BottleneckBlock(
            shape, shape.find_pattern(number), shape.find_positions(number), dtype=dtype, name=name + str(number)
        )
        for number in range(shape.num_layers)
    ]
