"""Encoder block with norms before its sublayers, as in ModernBERT and in encoders that descend from Llama."""

from collections.abc import Mapping
from typing import Any

import keras

from keras_bert_flow.backends.kernels import call_of
from keras_bert_flow.backends.values import Shape, Tensor
from keras_bert_flow.layers.attention import MultiHeadSelfAttention
from keras_bert_flow.layers.dense import Dense, make_norm
from keras_bert_flow.layers.encoder import Block, activate, make_feed_forward
from keras_bert_flow.layers.patterns import FULL, LEARNED, Full, Learned
from keras_bert_flow.layers.shape import EncoderShape


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class PreNormBlock(Block):
    """Transformer encoder block: the norm of the inputs, self-attention, their norm again, feed-forward.

    What each sublayer computes is added to its inputs, which are never normalised themselves, so a norm follows the
    last block. Biases, the kind of the norms, and whether the feed-forward is gated are choices of the shape. Dropout
    is after the attention, and between the two products of the feed-forward.

    Args:
        pattern, positions: of the attention; see `MultiHeadSelfAttention`.
        has_attention_norm: whether there is a norm before the attention; a lowest block after embeddings that are
            normalised needs none.
    Source: Xiong et al. 2020, section 3.1, arXiv:2002.04745; Warner et al. 2024 (ModernBERT), section 2.1.1,
        arXiv:2412.13663.
    """

    def __init__(
        self,
        shape: EncoderShape | Mapping[str, Any],
        pattern: Full | Mapping[str, Any] = FULL,
        positions: Learned | Mapping[str, Any] = LEARNED,
        has_attention_norm: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(shape, pattern, positions, **kwargs)
        policy = self.dtype_policy
        self.has_attention_norm = has_attention_norm
        if has_attention_norm:
            self.attention_norm = make_norm(self.shape, policy, "attention_norm")
        self.attention = MultiHeadSelfAttention(
            self.shape, self.pattern, self.positions, dtype=policy, name="attention"
        )
        self.attention_dropout = self.make_dropout("attention_dropout")
        self.feed_forward_norm = make_norm(self.shape, policy, "feed_forward_norm")
        self.intermediate, self.output_dense = make_feed_forward(self)
        self.intermediate_dropout = self.make_dropout("intermediate_dropout")

    def build(
        self, inputs_shape: Shape, padding_mask_shape: Shape | None = None, bias_shape: Shape | None = None
    ) -> None:
        inner_shape = (*inputs_shape[:-1], self.shape.intermediate_dim)
        if self.has_attention_norm:
            self.attention_norm.build(inputs_shape)
        self.attention.build(inputs_shape, padding_mask_shape)
        for layer in (self.attention_dropout, self.feed_forward_norm, self.intermediate):
            layer.build(inputs_shape)
        self.intermediate_dropout.build(inner_shape)
        self.output_dense.build(inner_shape)

    def transform(
        self, inputs: Tensor, padding_mask: Tensor, bias: Tensor | None = None, training: bool | None = None
    ) -> Tensor:
        normal = call_of(self.attention_norm)(inputs) if self.has_attention_norm else inputs
        attended = call_of(self.attention)(normal, padding_mask, bias, training=training)
        hidden = inputs + self.attention_dropout(attended, training=training)
        fused = call_of(self.intermediate)(call_of(self.feed_forward_norm)(hidden))
        inner = self.intermediate_dropout(activate(self, fused, training), training=training)
        return hidden + call_of(self.output_dense)(inner)

    def list_feed_forward(self) -> list[Dense]:
        return [self.intermediate, self.output_dense]

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"has_attention_norm": self.has_attention_norm}


def make_pre_norm_blocks(shape: EncoderShape, dtype: Any, name: str) -> list[PreNormBlock]:
    """Return a block for each layer of an encoder, in order; the arguments of `encoder.make_blocks`."""
    return [
        PreNormBlock(
            shape,
            shape.find_pattern(number),
            shape.find_positions(number),
            has_attention_norm=number > 0 or not shape.has_embedding_norm,
            dtype=dtype,
            name=name + str(number),
        )
        for number in range(shape.num_layers)
    ]
