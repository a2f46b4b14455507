"""What attention takes from the padding mask: which keys a query may attend to, and where each text of a row starts.

`padding_mask` is 0 for padding and 1, 2, … for the text of its row that a token belongs to. A row of one text is all 1,
as in BERT. Texts of a packed row do not attend to each other, and positions start again with each.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.products import minimum_by_group
from keras_bert_flow.backends.unpadding import is_unpaddable, pad_inputs, unpad_inputs
from keras_bert_flow.backends.values import Shape, Tensor, has_packed_rows
from keras_bert_flow.backends.windows import divide_keys, divide_row
from keras_bert_flow.layers.patterns import FULL, PATTERNS, Full, describe_kind, make_kind

# Far below any score, yet finite: in a row without real keys it absorbs the scores, and the softmax is uniform instead
# of NaN. google-research/bert adds -10000, which gives the same result wherever there is a real key.
MASKED_SCORE = -1e9


def text_positions(padding_mask: Tensor) -> Tensor:
    """Return the position of each token in its text, from 0.

    The first text of a row begins with the row, also if the row begins with padding: rows of one text have the
    positions that BERT gives them. The tokens of a text are counted from its first one, with padding between them.

    Args:
        padding_mask: int, (batch, length). The number of each token's text, 0 for padding.
    Returns:
        int32, (batch, length). The place in the row for padding.
    """
    numbers = ops.cast(padding_mask, "int32")
    length = ops.shape(numbers)[1]
    places = ops.arange(length, dtype="int32")
    # Sorted, the tokens of a text are neighbours, whatever the numbers are. By `top_k`: ONNX has no `argsort`.
    texts, order = ops.top_k(numbers, length)  # (batch, length); `order`: the place of each in its row
    order, changes = ops.cast(order, "int32"), ops.cast(ops.not_equal(texts[:, 1:], texts[:, :-1]), "int32")
    groups = ops.pad(ops.cumsum(changes, axis=1), ((0, 0), (1, 0)))  # the texts of a row from 0
    starts = minimum_by_group(order, groups)  # of each text
    starts = minimum_by_group(ops.take_along_axis(starts, groups, axis=1), order)  # of the text of each token
    first = ops.min(ops.where(numbers > 0, places, length), axis=1, keepdims=True)  # of the first text of each row
    return ops.where(ops.logical_and(numbers > 0, starts != first), places - starts, places)


def attention_bias(padding_mask: Tensor, pattern: Full = FULL, order: Tensor | None = None) -> Tensor:
    """Return what to add to attention scores: 0 where a query may attend to a key, `MASKED_SCORE` elsewhere.

    A padding token attends to the keys of all texts in its row that the pattern allows; nothing reads its output.

    Args:
        padding_mask: int or bool, (batch, length). The number of each token's text in its row, 0 for padding.
        pattern: which keys of its text a query may attend to.
        order: int, (batch, length). Of a `Permutation`: rank of each token in the order.
    Returns:
        float32, (batch, 1, query, key), or (batch, 1, 1, key) if it is the same for all queries.
    """
    numbers = ops.cast(padding_mask, "int32")
    keys = ops.expand_dims(numbers, (1, 2))  # (batch, 1, 1, key)
    allowed = keys > 0
    has_texts = has_packed_rows(numbers) is not False
    if has_texts:
        queries = ops.expand_dims(numbers, (1, 3))  # (batch, 1, query, 1)
        allowed = ops.logical_and(allowed, ops.logical_or(queries == keys, queries == 0))
    if not pattern.is_full:
        if order is not None:
            places = ops.cast(order, "int32")
        elif has_texts and pattern.counts_from_text:
            places = text_positions(numbers)
        else:
            places = ops.expand_dims(ops.arange(ops.shape(numbers)[1], dtype="int32"), 0)
        near = pattern.allows(ops.expand_dims(places, (1, 3)), ops.expand_dims(places, (1, 2)))
        allowed = ops.logical_and(allowed, near)
    return ops.where(allowed, 0.0, MASKED_SCORE)


def window_bias(padding_mask: Tensor, pattern: Full, size: int) -> Tensor:
    """Return the part of `attention_bias` that the blocks of `backends.windows` need.

    Args:
        padding_mask: int or bool, (batch, length). The number of each token's text in its row, 0 for padding.
        pattern: which keys of its text a query may attend to: none beyond the blocks beside its own.
        size: of a block.
    Returns:
        float32, (batch, 1, blocks, size, 3 size). Of each query of a block, the keys of the block before it, of its
        own, and of the one after it.
    """
    numbers = ops.expand_dims(ops.cast(padding_mask, "int32"), -1)  # (batch, length, 1)
    keys = ops.swapaxes(divide_keys(numbers, size), -1, -2)  # (batch, blocks, 1, 3 size)
    allowed = keys > 0
    if has_packed_rows(padding_mask) is not False:
        queries = divide_row(numbers, size)  # (batch, blocks, size, 1)
        allowed = ops.logical_and(allowed, ops.logical_or(queries == keys, queries == 0))
    places = ops.arange(3 * size, dtype="int32")
    near = pattern.allows(ops.expand_dims(places[size : 2 * size], 1), places)  # (size, 3 size)
    return ops.expand_dims(ops.where(ops.logical_and(allowed, near), 0.0, MASKED_SCORE), 1)


def make_bias(padding_mask: Tensor, pattern: Full = FULL) -> Tensor:
    """Return `window_bias` where attention is computed block by block, see `Full.find_block`, else `attention_bias`."""
    block = pattern.find_block(padding_mask.shape[1])
    return attention_bias(padding_mask, pattern) if block is None else window_bias(padding_mask, pattern, block)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class AttentionBias(keras.layers.Layer):
    """`make_bias` as a layer, computed once for all blocks of an encoder that share a pattern.

    Args:
        pattern: a pattern of `layers.patterns`, or its serialised form.
    Call arguments:
        padding_mask: int or bool, (batch, length). The number of each token's text in its row, 0 for padding.
    Returns:
        float32, (batch, 1, query, key); the third axis is 1 if the bias is the same for all queries. Of a window in a
        long row: (batch, 1, blocks, size, 3 size).
    """

    def __init__(self, pattern: Full | Mapping[str, Any] = FULL, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.pattern = make_kind(pattern, PATTERNS)

    def call(self, padding_mask: Tensor) -> Tensor:
        return make_bias(padding_mask, self.pattern)

    def compute_output_shape(self, padding_mask_shape: Shape) -> Shape:
        batch, length = padding_mask_shape
        if length is not None and (block := self.pattern.find_block(length)) is not None:
            return (batch, 1, -(-length // block), block, 3 * block)
        return (batch, 1, length, length)  # to which the bias broadcasts

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"pattern": describe_kind(self.pattern)}


# Layers that remove padding before the encoder blocks and restore it after them.


def is_unpadded(hidden: Tensor) -> bool:
    """Return whether padding was removed: (tokens, units) instead of (batch, length, units)."""
    return len(hidden.shape) == 2


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class UnpadInputs(keras.layers.Layer):
    """Remove padding from a batch for the encoder blocks, in training, if `is_unpaddable`.

    Dense layers, layer norms and dropout then spend no time on padding; attention restores the rows. The output for a
    real token does not depend on padding, so outputs and gradients are the same.

    Call arguments:
        hidden: float, (batch, length, units).
        padding_mask: int or bool, (batch, length). Above 0 for a real token.
    Returns:
        float, (tokens, units), or `hidden` unchanged.
    """

    def build(self, hidden_shape: Shape, padding_mask_shape: Shape | None = None) -> None:
        pass

    def call(self, hidden: Tensor, padding_mask: Tensor, training: bool | None = None) -> Tensor:
        return unpad_inputs(hidden, padding_mask) if training and is_unpaddable(padding_mask) else hidden

    def compute_output_shape(self, hidden_shape: Shape, padding_mask_shape: Shape | None = None) -> Shape:
        return hidden_shape


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class PadInputs(keras.layers.Layer):
    """Invert `UnpadInputs`: return (batch, length, units) with zeros for padding."""

    def build(self, hidden_shape: Shape, padding_mask_shape: Shape | None = None) -> None:
        pass

    def call(self, hidden: Tensor, padding_mask: Tensor) -> Tensor:
        return pad_inputs(hidden, padding_mask) if is_unpadded(hidden) else hidden

    def compute_output_shape(self, hidden_shape: Shape, padding_mask_shape: Shape | None = None) -> Shape:
        return hidden_shape
