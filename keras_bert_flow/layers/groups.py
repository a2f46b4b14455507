"""Encode several texts of a row at once, and compare what comes out."""

import keras
from keras import ops

from keras_bert_flow.layers.attention import MASKED_SCORE
from keras_bert_flow.layers.pooling import unit_length


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class MergeTexts(keras.layers.Layer):
    """Make rows of the texts of each row: (batch, texts, length) → (batch * texts, length)."""

    def build(self, inputs_shape):
        pass

    def call(self, inputs):
        return ops.reshape(inputs, (-1, ops.shape(inputs)[-1]))

    def compute_output_shape(self, inputs_shape):
        batch, texts, length = inputs_shape
        return (None if batch is None or texts is None else batch * texts, length)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class ChoiceScores(keras.layers.Layer):
    """Give the logits of merged texts back to their rows; a text without a token is filler and gets `MASKED_SCORE`.

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
class PairSimilarity(keras.layers.Layer):
    """Compare the two vectors of each pair by their cosine.

    Call arguments:
        vectors: float, (batch * 2, hidden). First and second text of each pair in turn.
    Returns:
        float, (batch,), or where `temperature` is given each first text with each second one, divided by it,
        (batch, batch).
    """

    def __init__(self, temperature=None, **kwargs):
        super().__init__(**kwargs)
        self.temperature = temperature

    def build(self, vectors_shape):
        pass

    def call(self, vectors):
        pairs = ops.reshape(unit_length(vectors), (-1, 2, vectors.shape[-1]))
        first, second = pairs[:, 0], pairs[:, 1]  # (batch, hidden)
        if self.temperature is None:
            return ops.sum(first * second, axis=-1)
        return ops.matmul(first, ops.transpose(second)) / self.temperature

    def compute_output_shape(self, vectors_shape):
        batch = None if vectors_shape[0] is None else vectors_shape[0] // 2
        return (batch,) if self.temperature is None else (batch, batch)

    def get_config(self):
        return super().get_config() | {"temperature": self.temperature}
