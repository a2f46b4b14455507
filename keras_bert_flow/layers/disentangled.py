"""Layers of DeBERTa-v2 and -v3: embeddings, the table of relative positions that all blocks share, and the block."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.kernels import call_of
from keras_bert_flow.backends.products import matmul
from keras_bert_flow.backends.unpadding import pad_inputs, unpad_inputs
from keras_bert_flow.backends.values import Shape, Tensor
from keras_bert_flow.layers.dense import ShapedLayer, get_activation, truncated_normal
from keras_bert_flow.layers.embeddings import PositionedEmbeddings
from keras_bert_flow.layers.encoder import EncoderBlock
from keras_bert_flow.layers.masks import is_unpadded
from keras_bert_flow.layers.patterns import FULL, LEARNED, Full, Learned
from keras_bert_flow.layers.shape import EncoderShape


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class DisentangledEmbeddings(PositionedEmbeddings):
    """Project token embeddings, if they are narrower, then layer norm, zeros for padding, and dropout.

    Learned positions and segments are added before, if the shape has them.

    Call arguments:
        token_embeddings: float, (batch, length, embedding).
        segment_ids: int, (batch, length).
        padding_mask: int or bool, (batch, length). The number of each token's text in its row, 0 for padding. Without
            it each row is one text.
    Returns:
        float, (batch, length, hidden).
    Source: microsoft/DeBERTa, deberta/bert.py, `BertEmbeddings`.
    """

    shape: Any  # `DebertaShape`, of a family, which no layer imports

    def __init__(self, shape: EncoderShape | Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(shape, **kwargs)
        if self.shape.has_narrow_embeddings:
            self.projection = self.make_dense(self.shape.hidden_dim, "projection", use_bias=False)
        self.layer_norm = self.make_layer_norm("layer_norm")
        self.dropout = self.make_dropout("dropout")

    def build(
        self,
        token_embeddings_shape: Shape,
        segment_ids_shape: Shape | None = None,
        padding_mask_shape: Shape | None = None,
    ) -> None:
        hidden_shape = (*token_embeddings_shape[:-1], self.shape.hidden_dim)
        self.build_tables()
        if self.shape.has_narrow_embeddings:
            self.projection.build(token_embeddings_shape)
        self.layer_norm.build(hidden_shape)
        self.dropout.build(hidden_shape)

    def call(
        self,
        token_embeddings: Tensor,
        segment_ids: Tensor,
        padding_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        hidden = self.add_tables(token_embeddings, segment_ids, padding_mask)
        hidden = self.layer_norm(self.projection(hidden) if self.shape.has_narrow_embeddings else hidden)
        if padding_mask is not None:
            hidden = hidden * ops.cast(ops.expand_dims(ops.cast(padding_mask, "bool"), -1), hidden.dtype)
        return self.dropout(hidden, training=training)

    def compute_output_shape(
        self,
        token_embeddings_shape: Shape,
        segment_ids_shape: Shape | None = None,
        padding_mask_shape: Shape | None = None,
    ) -> Shape:
        return (*token_embeddings_shape[:-1], self.shape.hidden_dim)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class RelativePositions(ShapedLayer):
    """The table of relative positions, through a layer norm if the shape has one; all blocks take it.

    Call arguments:
        inputs: any tensor. It is not read.
    Returns:
        float, (`num_relative_rows` of the shape, hidden).
    Source: He et al. 2021, section 3.2, arXiv:2006.03654; microsoft/DeBERTa, deberta/bert.py, `get_rel_embedding`.
    """

    shape: Any  # `DebertaShape`, of a family, which no layer imports

    def __init__(self, shape: EncoderShape | Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(shape, **kwargs)
        if self.shape.has_relative_norm:
            self.layer_norm = self.make_layer_norm("layer_norm")

    def build(self, inputs_shape: Shape | None = None) -> None:
        self.table = self.add_weight(
            shape=(self.shape.num_relative_rows, self.shape.hidden_dim),
            initializer=truncated_normal(self.shape.initializer_range),
            name="table",
        )
        if self.shape.has_relative_norm:
            self.layer_norm.build(self.table.shape)

    def call(self, inputs: Tensor) -> Tensor:
        table = ops.convert_to_tensor(self.table)
        return self.layer_norm(table) if self.shape.has_relative_norm else table

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return (self.shape.num_relative_rows, self.shape.hidden_dim)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Convolution(ShapedLayer):
    """Convolution over the embeddings of neighbouring tokens of a text, added to the output of the lowest block.

    Call arguments:
        hidden: float, (batch, length, hidden). The output of the block.
        inputs: float, the same shape. The input of the block; what it holds for padding is not read.
        padding_mask: int or bool, (batch, length). The number of each token's text in its row, 0 for padding.
    Returns:
        float, the shape of `hidden`. The layer norm of the sum.
    Source: He et al. 2021, section 4.4 ("nGiE"), arXiv:2006.03654; microsoft/DeBERTa, deberta/bert.py, `ConvLayer`.
    """

    shape: Any  # `DebertaShape`, of a family, which no layer imports

    def __init__(self, shape: EncoderShape | Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(shape, **kwargs)
        self.dropout = self.make_dropout("dropout")
        self.layer_norm = self.make_layer_norm("layer_norm")

    def build(self, hidden_shape: Shape, *other_shapes: Shape) -> None:
        width, hidden = self.shape.convolution_width, self.shape.hidden_dim
        initializer = truncated_normal(self.shape.initializer_range)
        self.kernel = self.add_weight(shape=(width, hidden, hidden), initializer=initializer, name="kernel")
        self.bias = self.add_weight(shape=(hidden,), initializer="zeros", name="bias")
        self.dropout.build(hidden_shape)
        self.layer_norm.build(hidden_shape)

    def call(self, hidden: Tensor, inputs: Tensor, padding_mask: Tensor, training: bool | None = None) -> Tensor:
        width, size = self.shape.convolution_width, self.shape.hidden_dim
        half, length = width // 2, ops.shape(inputs)[1]
        numbers = ops.cast(padding_mask, "int32")
        wide = ops.pad(inputs, ((0, 0), (half, half), (0, 0)))
        wide_numbers = ops.pad(numbers, ((0, 0), (half, half)))
        near = []
        for start in range(width):  # the neighbour at start - half, 0 in another text
            is_near = ops.logical_and(wide_numbers[:, start : start + length] == numbers, numbers > 0)
            part = wide[:, start : start + length]
            near.append(part * ops.cast(ops.expand_dims(is_near, -1), part.dtype))
        kernel = ops.reshape(ops.convert_to_tensor(self.kernel), (width * size, size))
        added = matmul(ops.concatenate(near, axis=-1), kernel) + self.bias
        activation = ops.tanh if self.shape.convolution_act == "tanh" else get_activation(self.shape.convolution_act)
        return call_of(self.layer_norm)(hidden + activation(self.dropout(added, training=training)))

    def compute_output_shape(self, hidden_shape: Shape, *other_shapes: Shape) -> Shape:
        return hidden_shape


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class DisentangledBlock(EncoderBlock):
    """The block of BERT with disentangled attention, and in the lowest one a convolution of the embeddings.

    Call arguments: those of `Block`; `relative` is the output of `RelativePositions`.

    Args:
        pattern, positions: of the attention; see `MultiHeadSelfAttention`.
        has_convolution: whether a `Convolution` of the inputs follows.
    Source: He et al. 2021, sections 3.1 and 3.2; arXiv:2006.03654.
    """

    def __init__(
        self,
        shape: EncoderShape | Mapping[str, Any],
        pattern: Full | Mapping[str, Any] = FULL,
        positions: Learned | Mapping[str, Any] = LEARNED,
        has_convolution: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(shape, None, pattern, positions, **kwargs)
        self.has_convolution = has_convolution
        self.relative_dropout = self.make_dropout("relative_dropout")
        if has_convolution:
            self.convolution = Convolution(self.shape, dtype=self.dtype_policy, name="convolution")

    def build(self, inputs_shape: Shape, *other_shapes: Shape, **named_shapes: Shape) -> None:
        super().build(inputs_shape)
        self.relative_dropout.build((None, self.shape.hidden_dim))
        if self.has_convolution:
            self.convolution.build(inputs_shape)

    def transform(
        self,
        inputs: Tensor,
        padding_mask: Tensor,
        bias: Tensor | None = None,
        training: bool | None = None,
        relative: Tensor | None = None,
    ) -> Tensor:
        if relative is not None:
            relative = self.relative_dropout(relative, training=training)
        hidden = super().transform(inputs, padding_mask, bias, training, relative)
        if not self.has_convolution:
            return hidden
        if not is_unpadded(inputs):
            return call_of(self.convolution)(hidden, inputs, padding_mask, training=training)
        rows = (pad_inputs(tokens, padding_mask) for tokens in (hidden, inputs))
        return unpad_inputs(call_of(self.convolution)(*rows, padding_mask, training=training), padding_mask)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"has_convolution": self.has_convolution}


def make_disentangled_blocks(shape: Any, dtype: Any, name: str) -> list[DisentangledBlock]:
    """Return a block for each layer of an encoder, in order; the arguments of `encoder.make_blocks`."""
    return [
        DisentangledBlock(
            shape,
            shape.find_pattern(number),
            shape.find_positions(number),
            has_convolution=number == 0 and shape.convolution_width > 0,
            dtype=dtype,
            name=name + str(number),
        )
        for number in range(shape.num_layers)
    ]
