"""Encode several texts per row: merge them into the batch axis, and split the outputs again."""

import keras
from keras import ops

from keras_bert_flow.layers.attention import MASKED_SCORE


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class MergeTexts(keras.layers.Layer):
    """Merge the texts of each row into the batch axis: (batch, texts, length) → (batch * texts, length)."""

    def build(self, inputs_shape):
        pass

    def call(self, inputs):
        return ops.reshape(inputs, (-1, ops.shape(inputs)[-1]))

    def compute_output_shape(self, inputs_shape):
        batch, texts, length = inputs_shape
        return (None if batch is None or texts is None else batch * texts, length)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class ChoiceScores(keras.layers.Layer):
    """Split the logits of merged texts by row; a text without tokens is filler and gets `MASKED_SCORE`.

    Call arguments:
        logits: float, (batch * choices, 1).
        padding_mask: int or bool, (batch, choices, length). 1 for a real token.
    Returns:
        float, (batch, choices).
    """

    def build(self, logits_shape, padding_mask_shape=None):
        pass

    def call(self, logits, padding_mask):
        is_text = ops.any(ops.cast(padding_mask, "bool"), axis=-1)  # (batch, choices)
        scores = ops.reshape(logits, ops.shape(is_text))
        return ops.where(is_text, scores, ops.cast(MASKED_SCORE, scores.dtype))

    def compute_output_shape(self, logits_shape, padding_mask_shape):
        return tuple(padding_mask_shape[:2])


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class SplitTexts(keras.layers.Layer):
    """Split the vectors of merged texts by row: (batch * texts, hidden) → (batch, texts, hidden).

    Call arguments:
        vectors: float, (batch * texts, hidden).
        padding_mask: int or bool, (batch, texts, length). Gives the number of texts per row.
    """

    def build(self, vectors_shape, padding_mask_shape=None):
        pass

    def call(self, vectors, padding_mask):
        return ops.reshape(vectors, (-1, ops.shape(padding_mask)[1], vectors.shape[-1]))

    def compute_output_shape(self, vectors_shape, padding_mask_shape):
        return (*padding_mask_shape[:2], vectors_shape[-1])
