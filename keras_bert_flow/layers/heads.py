"""Read predictions off the encoder."""

import keras
from keras import ops

from keras_bert_flow.backends.products import matmul
from keras_bert_flow.layers.activations import get_activation
from keras_bert_flow.layers.attention import MASKED_SCORE
from keras_bert_flow.layers.dense import Dense
from keras_bert_flow.layers.initializers import truncated_normal


def gather_positions(sequence, positions):
    """Pick rows of a sequence.

    A product with one-hot rows: exact, and its gradient is again a product, the same on every run, where that of a
    gather adds rows in any order.

    Args:
        sequence: float, (batch, length, hidden).
        positions: int, (batch, picks).
    Returns:
        float, (batch, picks, hidden).
    """
    one_hot = ops.one_hot(positions, ops.shape(sequence)[1], dtype=sequence.dtype)  # (batch, picks, length)
    return matmul(one_hot, sequence)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Pooler(keras.layers.Layer):
    """Summarise a sequence by its first token: dense, then tanh.

    Source: google-research/bert, modeling.py, `BertModel`, scope "pooler".
    """

    def __init__(self, hidden_dim, initializer_range=0.02, **kwargs):
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim
        self.initializer_range = initializer_range
        self.dense = Dense(
            hidden_dim,
            activation="tanh",
            kernel_initializer=truncated_normal(initializer_range),
            dtype=self.dtype_policy,
            name="dense",
        )

    def build(self, sequence_shape):
        self.dense.build((sequence_shape[0], sequence_shape[-1]))

    def call(self, sequence):
        return self.dense(sequence[:, 0, :])  # (batch, hidden)

    def compute_output_shape(self, sequence_shape):
        return (sequence_shape[0], self.hidden_dim)

    def get_config(self):
        return super().get_config() | {"hidden_dim": self.hidden_dim, "initializer_range": self.initializer_range}


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class MaskedTokenTransform(keras.layers.Layer):
    """Pick the masked positions and prepare them for the vocabulary: dense, activation, layer norm.

    Call arguments:
        sequence: float, (batch, length, hidden).
        mask_positions: int, (batch, masks_per_sequence).
    Returns:
        float, (batch, masks_per_sequence, hidden).
    Source: google-research/bert, run_pretraining.py, `get_masked_lm_output`.
    """

    def __init__(self, hidden_dim, hidden_act="gelu", layer_norm_epsilon=1e-12, initializer_range=0.02, **kwargs):
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim
        self.hidden_act = hidden_act
        self.layer_norm_epsilon = layer_norm_epsilon
        self.initializer_range = initializer_range
        self.dense = Dense(
            hidden_dim,
            activation=get_activation(hidden_act),
            kernel_initializer=truncated_normal(initializer_range),
            dtype=self.dtype_policy,
            name="dense",
        )
        self.layer_norm = keras.layers.LayerNormalization(
            epsilon=layer_norm_epsilon, dtype=self.dtype_policy, name="layer_norm"
        )

    def build(self, sequence_shape, mask_positions_shape=None):
        self.dense.build(sequence_shape)
        self.layer_norm.build((*sequence_shape[:-1], self.hidden_dim))

    def call(self, sequence, mask_positions):
        return self.layer_norm(self.dense(gather_positions(sequence, mask_positions)))

    def compute_output_shape(self, sequence_shape, mask_positions_shape):
        return (*mask_positions_shape, self.hidden_dim)

    def get_config(self):
        return super().get_config() | {
            "hidden_dim": self.hidden_dim,
            "hidden_act": self.hidden_act,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_range": self.initializer_range,
        }


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class OutputBias(keras.layers.Layer):
    """Add a bias to each logit. Make it with `dtype="float32"`, so that the loss sees float32 logits."""

    def build(self, logits_shape):
        self.bias = self.add_weight(shape=(logits_shape[-1],), initializer="zeros", name="bias")

    def call(self, logits):
        return logits + self.bias

    def compute_output_shape(self, logits_shape):
        return logits_shape


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class SpanScores(keras.layers.Layer):
    """Part the logits of first and last tokens, and have padding lose against every real token.

    Call arguments:
        logits: float, (batch, length, 2).
        padding_mask: int or bool, (batch, length). 1 for a real token.
    Returns:
        {"start": float, (batch, length), "end": the same}. `MASKED_SCORE` for padding.
    """

    def build(self, logits_shape, padding_mask_shape=None):
        pass

    def call(self, logits, padding_mask):
        is_real = ops.cast(padding_mask, "bool")
        masked = ops.cast(MASKED_SCORE, logits.dtype)
        return {name: ops.where(is_real, logits[..., place], masked) for place, name in enumerate(("start", "end"))}

    def compute_output_shape(self, logits_shape, padding_mask_shape=None):
        return {"start": tuple(logits_shape[:-1]), "end": tuple(logits_shape[:-1])}
