"""Position and segment embeddings, and what follows them."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.products import matmul, one_hot
from keras_bert_flow.backends.values import Shape, Tensor, has_packed_rows
from keras_bert_flow.layers.dense import Dropout, ShapedLayer, truncated_normal
from keras_bert_flow.layers.masks import text_positions
from keras_bert_flow.layers.shape import EncoderShape


class PositionedEmbeddings(ShapedLayer):
    """Base class of layers that add learned segment and position embeddings; abstract."""

    def build_tables(self) -> None:
        """Add the weights, `position_dim` of the shape wide."""
        if self.shape.num_position_rows:
            self.position_embedding = self.add_weight(
                shape=(self.shape.num_position_rows, self.shape.position_dim),
                initializer=truncated_normal(self.shape.initializer_range),
                name="position_embedding",
            )
        if self.shape.num_segments:
            self.segment_embedding = self.add_weight(
                shape=(self.shape.num_segments, self.shape.position_dim),
                initializer=truncated_normal(self.shape.initializer_range),
                name="segment_embedding",
            )

    def add_tables(self, hidden: Tensor, segment_ids: Tensor, padding_mask: Tensor | None) -> Tensor:
        """Return `hidden`, float, (batch, length, `position_dim`), with the embeddings of segments and positions added.

        Raises:
            ValueError: a sequence is longer than `max_positions`.
        """
        length = hidden.shape[1]
        if length is not None and length > self.shape.max_positions:
            raise ValueError(
                f"A sequence must be at most `max_positions` long. Received: length={length}, "
                f"max_positions={self.shape.max_positions}. Cut the sequence or build the model with more positions."
            )
        if self.shape.num_segments == 1:  # all tokens belong to it, whichever text they are from
            segment_ids = ops.zeros_like(segment_ids)
        if self.shape.num_segments:
            # A one-hot product, (batch, length, segments): the gradient of a gather would add thousands of rows to two.
            segments = one_hot(segment_ids, self.shape.num_segments, dtype=self.compute_dtype)
            hidden = hidden + matmul(segments, self.segment_embedding)
        if not self.shape.num_position_rows:
            return hidden
        first = self.shape.position_offset
        rows = self.position_embedding[first : first + ops.shape(hidden)[1]]
        positions = rows if padding_mask is None else _restart_positions(rows, ops.cast(padding_mask, "int32"))
        return hidden + positions


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BertEmbeddings(PositionedEmbeddings):
    """Add segment and position embeddings, if any, to token embeddings, then layer norm, if any, and dropout.

    The token embedding is a separate layer, because the masked-LM head projects through it as well.

    Call arguments:
        token_embeddings: float, (batch, length, embedding).
        segment_ids: int, (batch, length).
        padding_mask: int or bool, (batch, length). The number of each token's text in its row, 0 for padding. Without
            it each row is one text.
    Returns:
        float, (batch, length, embedding).
    Source: Devlin et al. 2019, section 3, figure 2; arXiv:1810.04805.
    """

    def __init__(self, shape: EncoderShape | Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(shape, **kwargs)
        if self.shape.has_embedding_norm:
            self.layer_norm = self.make_layer_norm("layer_norm")
        self.dropout = Dropout(self.shape.embedding_dropout_rate, dtype=self.dtype_policy, name="dropout")

    def build(
        self,
        token_embeddings_shape: Shape,
        segment_ids_shape: Shape | None = None,
        padding_mask_shape: Shape | None = None,
    ) -> None:
        self.build_tables()
        if self.shape.has_embedding_norm:
            self.layer_norm.build(token_embeddings_shape)
        self.dropout.build(token_embeddings_shape)

    def call(
        self,
        token_embeddings: Tensor,
        segment_ids: Tensor,
        padding_mask: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        hidden = self.add_tables(token_embeddings, segment_ids, padding_mask)
        hidden = self.layer_norm(hidden) if self.shape.has_embedding_norm else hidden
        return self.dropout(hidden, training=training)

    def compute_output_shape(
        self,
        token_embeddings_shape: Shape,
        segment_ids_shape: Shape | None = None,
        padding_mask_shape: Shape | None = None,
    ) -> Shape:
        return token_embeddings_shape


def _restart_positions(rows: Tensor, padding_mask: Tensor) -> Tensor:
    """Return the row of each token's position in its text: (length, width), or (batch, length, width) if packed."""

    is_packed = has_packed_rows(padding_mask)
    if is_packed is False:
        return rows
    if is_packed or keras.backend.backend() == "torch":  # which would wait for the device to choose
        return ops.take(rows, text_positions(padding_mask), axis=0)
    return ops.cond(
        ops.any(padding_mask > 1),
        lambda: ops.take(rows, text_positions(padding_mask), axis=0),
        lambda: ops.broadcast_to(rows, (*ops.shape(padding_mask), rows.shape[-1])),
    )
