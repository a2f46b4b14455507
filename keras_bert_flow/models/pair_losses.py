"""Losses and metrics for text embeddings trained on pairs: cosine and in-batch contrastive."""

import keras
from keras import ops

from keras_bert_flow.layers.attention import MASKED_SCORE
from keras_bert_flow.layers.pooling import unit_length
from keras_bert_flow.models.defaults import TokenAccuracy, TokenLoss
from keras_bert_flow.models.losses import SquaredError


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class CosineLoss(SquaredError):
    """Squared error of the cosine similarity of each pair.

    Call arguments:
        y_true: float, (batch,) or (batch, 1). The target cosine.
        y_pred: float, (batch, 2, hidden). The vectors of both texts.
    Source: Reimers and Gurevych 2019, section 3, regression objective; `CosineSimilarityLoss` of
    `sentence_transformers`.
    """

    def call(self, y_true, y_pred):
        return super().call(y_true, pair_cosines(y_pred))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class CosineError(keras.metrics.RootMeanSquaredError):
    """Root mean squared error of the cosine similarity, as for `CosineLoss`."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        cosines = pair_cosines(y_pred)
        return super().update_state(ops.reshape(y_true, ops.shape(cosines)), cosines, sample_weight)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class ContrastiveLoss(TokenLoss):
    """Contrastive loss with in-batch negatives (InfoNCE): find the second text of each pair by the scaled cosine.

    Call arguments:
        y_true: int, (batch, 2). Ids of both texts; texts with the same id are the same text.
        y_pred: float, (batch, 2, hidden). The vectors of both texts.
        sample_weight: float, (batch,). A pair of weight 0 is filler: its second text is never a negative.
    Args:
        scale: factor of the cosines.
    Source: Henderson et al. 2017, section 4.4, arXiv:1705.00652; `MultipleNegativesRankingLoss` of
    `sentence_transformers`, which has no such ids: its batches contain no text twice.
    """

    def __init__(self, scale=20.0, reduction="mean_with_sample_weight", **kwargs):
        super().__init__(reduction=reduction, **kwargs)
        self.scale = scale

    def __call__(self, y_true, y_pred, sample_weight=None):
        logits = candidate_logits(y_pred, y_true, sample_weight, self.scale)
        return super().__call__(_own_places(logits), logits, sample_weight)

    def get_config(self):
        return super().get_config() | {"scale": self.scale}


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class ContrastiveAccuracy(TokenAccuracy):
    """Share of pairs whose second text is the nearest of the candidates of `ContrastiveLoss`."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        logits = candidate_logits(y_pred, y_true, sample_weight)
        return super().update_state(_own_places(logits), logits, sample_weight)


def pair_cosines(vectors):
    """Return the cosine of each pair, (batch,), of vectors, (batch, 2, hidden)."""
    units = unit_length(ops.convert_to_tensor(vectors))
    return ops.sum(units[:, 0] * units[:, 1], axis=-1)


def candidate_logits(vectors, numbers, weights=None, scale=1.0):
    """Return the scaled cosine of each first text with each second one, (batch, batch).

    It is `MASKED_SCORE` if the second text is not a valid negative: it is filler, or its pair shares a text with that
    of the row. Each row's own second text is always a candidate.
    """
    units = unit_length(ops.convert_to_tensor(vectors))
    logits = ops.matmul(units[:, 0], ops.transpose(units[:, 1])) * scale
    is_own = ops.eye(ops.shape(logits)[0], dtype="bool")
    is_negative = ops.logical_not(_share_a_text(ops.cast(numbers, "int32")))
    if weights is not None:
        is_real = ops.reshape(ops.cast(weights, "float32"), (1, -1)) > 0
        is_negative = ops.logical_and(is_negative, is_real)
    return ops.where(ops.logical_or(is_own, is_negative), logits, ops.cast(MASKED_SCORE, logits.dtype))


def _share_a_text(numbers):
    """Return whether two pairs have a text in common, bool, (batch, batch)."""
    is_same = ops.equal(numbers[:, None, :, None], numbers[None, :, None, :])  # (pair, pair, its text, its text)
    return ops.any(is_same, axis=(-1, -2))


def _own_places(logits):
    return ops.arange(ops.shape(logits)[0], dtype="int32")
