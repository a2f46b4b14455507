"""Layers of prediction heads: pooler, masked-LM transform, output bias, span scores."""

import keras
from keras import ops

from keras_bert_flow.backends.products import matmul
from keras_bert_flow.layers.activations import get_activation
from keras_bert_flow.layers.attention import MASKED_SCORE
from keras_bert_flow.layers.shaped import ShapedLayer


def gather_positions(sequence, positions):
    """Gather positions of a sequence as a one-hot product.

    The product is exact, and so is its gradient, another product, deterministic; that of a gather adds rows in any
    order.

    Args:
        sequence: float, (batch, length, hidden).
        positions: int, (batch, picks).
    Returns:
        float, (batch, picks, hidden).
    """
    one_hot = ops.one_hot(positions, ops.shape(sequence)[1], dtype=sequence.dtype)  # (batch, picks, length)
    return matmul(one_hot, sequence)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Pooler(ShapedLayer):
    """Pooler: the first token through a dense layer and an activation, tanh in BERT.

    Source: google-research/bert, modeling.py, `BertModel`, scope "pooler".
    """

    def __init__(self, shape, **kwargs):
        super().__init__(shape, **kwargs)
        self.dense = self.make_dense(self.shape.hidden_dim, "dense", self.shape.pooler_act)

    def build(self, sequence_shape):
        self.dense.build((sequence_shape[0], sequence_shape[-1]))

    def call(self, sequence):
        return self.dense(sequence[:, 0, :])  # (batch, hidden)

    def compute_output_shape(self, sequence_shape):
        return (sequence_shape[0], self.shape.hidden_dim)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class MaskedTokenTransform(ShapedLayer):
    """Masked-LM transform: gather the masked positions, then dense, activation, layer norm.

    Call arguments:
        sequence: float, (batch, length, hidden).
        mask_positions: int, (batch, masks_per_sequence).
    Returns:
        float, (batch, masks_per_sequence, embedding), the width of the token embeddings.
    Source: google-research/bert, run_pretraining.py, `get_masked_lm_output`.
    """

    def __init__(self, shape, **kwargs):
        super().__init__(shape, **kwargs)
        activation = get_activation(self.shape.mlm_hidden_act or self.shape.hidden_act)
        self.dense = self.make_dense(self.shape.embedding_dim, "dense", activation)
        self.layer_norm = self.make_layer_norm("layer_norm", self.shape.mlm_layer_norm_epsilon)

    def build(self, sequence_shape, mask_positions_shape=None):
        self.dense.build(sequence_shape)
        self.layer_norm.build((*sequence_shape[:-1], self.shape.embedding_dim))

    def call(self, sequence, mask_positions):
        return self.layer_norm(self.dense(gather_positions(sequence, mask_positions)))

    def compute_output_shape(self, sequence_shape, mask_positions_shape):
        return (*mask_positions_shape, self.shape.embedding_dim)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class OutputBias(keras.layers.Layer):
    """Add a bias to each logit. Create it with `dtype="float32"`, so that the loss gets float32 logits.

    Args:
        num_pieces: number of logits that belong to pieces of the vocabulary; the others become `MASKED_SCORE`. Default:
            all.
    """

    def __init__(self, num_pieces=None, **kwargs):
        super().__init__(**kwargs)
        self.num_pieces = num_pieces

    def build(self, logits_shape):
        self.bias = self.add_weight(shape=(logits_shape[-1],), initializer="zeros", name="bias")

    def call(self, logits):
        logits = logits + self.bias
        if self.num_pieces is None:
            return logits
        return ops.where(ops.arange(logits.shape[-1]) < self.num_pieces, logits, ops.cast(MASKED_SCORE, logits.dtype))

    def compute_output_shape(self, logits_shape):
        return logits_shape

    def get_config(self):
        return super().get_config() | {"num_pieces": self.num_pieces}


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class SpanScores(keras.layers.Layer):
    """Split span logits into start and end scores, with very low scores for padding.

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
