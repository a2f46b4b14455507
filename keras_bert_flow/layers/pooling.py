"""Pool the tokens of a text into one vector."""

import keras
from keras import ops

from keras_bert_flow.layers.attention import MASKED_SCORE

POOLINGS = ("mean", "cls", "max")
SMALLEST_SQUARE = 1e-24  # the square of the epsilon of `torch.nn.functional.normalize`


def unit_length(vectors):
    """Normalise vectors to unit length along the last axis; the zero vector stays zero, and so does its gradient.

    Keras' `UnitNormalization` computes the same, but its gradient at 0, the vector of filler, is NaN.
    """
    squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    return vectors * ops.rsqrt(ops.maximum(squares, SMALLEST_SQUARE))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TokenPooling(keras.layers.Layer):
    """Pool the real tokens of each row; a row without any gives zeros, or with `cls` its first token.

    Call arguments:
        sequence: float, (batch, length, hidden).
        padding_mask: int or bool, (batch, length). 1 for a real token.
    Returns:
        float, (batch, hidden). Computed in float32 if the layer's dtype is float32.
    Args:
        pooling: `mean` or `max` of the real tokens, or `cls`, the first one.
        normalize: divide each vector by its length.
    Raises:
        ValueError: `pooling` is none of these.
    Source: Reimers and Gurevych 2019, section 3; arXiv:1908.10084.
    """

    def __init__(self, pooling="mean", normalize=False, **kwargs):
        super().__init__(**kwargs)
        if pooling not in POOLINGS:
            raise ValueError(f"`pooling` must be one of {', '.join(POOLINGS)}. Received: pooling={pooling!r}.")
        self.pooling = pooling
        self.normalize = normalize

    def build(self, sequence_shape, padding_mask_shape=None):
        pass

    def call(self, sequence, padding_mask):
        vectors = self._pool(sequence, padding_mask)
        return unit_length(vectors) if self.normalize else vectors

    def _pool(self, sequence, padding_mask):
        if self.pooling == "cls":
            return sequence[:, 0, :]
        is_real = ops.expand_dims(ops.cast(padding_mask, "bool"), -1)  # (batch, length, 1)
        if self.pooling == "max":
            largest = ops.max(ops.where(is_real, sequence, ops.cast(MASKED_SCORE, sequence.dtype)), axis=1)
            return ops.where(ops.any(is_real, axis=1), largest, ops.zeros_like(largest))
        weights = ops.cast(is_real, sequence.dtype)
        return ops.sum(sequence * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1)

    def compute_output_shape(self, sequence_shape, padding_mask_shape=None):
        return (sequence_shape[0], sequence_shape[-1])

    def get_config(self):
        return super().get_config() | {"pooling": self.pooling, "normalize": self.normalize}
