"""Losses and metrics that Keras lacks for these output shapes."""

import keras
from keras import ops

from keras_bert_flow.models.defaults import TokenAccuracy, TokenLoss


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class SquaredError(keras.losses.Loss):
    """Squared error of one number per row, (batch,); Keras' own averages over the last axis, here the batch axis."""

    def __init__(self, reduction="mean_with_sample_weight", **kwargs):
        super().__init__(reduction=reduction, **kwargs)

    def call(self, y_true, y_pred):
        return ops.square(ops.reshape(y_true, ops.shape(y_pred)) - y_pred)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TagLoss(TokenLoss):
    """Cross-entropy of the labelled tokens; a label below 0, such as -1 or -100, means none and has weight 0."""

    def __init__(self, reduction="mean_with_sample_weight", **kwargs):
        super().__init__(reduction=reduction, **kwargs)

    def __call__(self, y_true, y_pred, sample_weight=None):
        return super().__call__(*weigh_tags(y_true, y_pred, sample_weight))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TagAccuracy(TokenAccuracy):
    """Accuracy over the labelled tokens, as for `TagLoss`."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(*weigh_tags(y_true, y_pred, sample_weight))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class LabelLoss(keras.losses.BinaryCrossentropy):
    """Binary cross-entropy of multi-label logits, averaged over labels; NaN for a label outside 0 to 1."""

    def __init__(self, from_logits=True, reduction="mean_with_sample_weight", **kwargs):
        super().__init__(from_logits=from_logits, reduction=reduction, **kwargs)

    def call(self, y_true, y_pred):
        losses = super().call(y_true, y_pred)
        is_valid = ops.all(ops.logical_and(y_true >= 0, y_true <= 1), axis=-1)
        return ops.where(is_valid, losses, ops.cast(float("nan"), losses.dtype))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class LabelAccuracy(keras.metrics.Mean):
    """Binary accuracy of multi-label logits, with threshold 0; Keras' own does not take logits."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        is_right = ops.equal(ops.convert_to_tensor(y_pred) > 0, ops.cast(y_true, "float32") > 0.5)
        return super().update_state(ops.mean(ops.cast(is_right, "float32"), axis=-1), sample_weight)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BinaryTokenLoss(keras.losses.Loss):
    """Binary cross-entropy of each token's logit, (batch, length); Keras' own averages over a row."""

    def __init__(self, reduction="mean_with_sample_weight", **kwargs):
        super().__init__(reduction=reduction, **kwargs)

    def call(self, y_true, y_pred):
        return ops.binary_crossentropy(ops.cast(y_true, y_pred.dtype), y_pred, from_logits=True)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BinaryTokenAccuracy(keras.metrics.Mean):
    """Binary accuracy of each token's logit, with threshold 0."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        is_right = ops.equal(ops.convert_to_tensor(y_pred) > 0, ops.cast(y_true, "float32") > 0.5)
        return super().update_state(ops.cast(is_right, "float32"), sample_weight)


def weigh_tags(labels, logits, sample_weight=None):
    """Return labels clipped to at least 0, the logits, and weights of 0 where the label was negative.

    Args:
        labels: int, (batch, length).
        logits: float, (batch, length, tags).
        sample_weight: float, (batch, length) or (batch,).
    """
    labels = ops.cast(labels, "int32")
    weights = ops.cast(labels >= 0, "float32")
    if sample_weight is not None:
        sample_weight = ops.cast(sample_weight, "float32")
        weights = weights * (sample_weight if len(sample_weight.shape) == 2 else ops.reshape(sample_weight, (-1, 1)))
    return ops.maximum(labels, 0), logits, weights
