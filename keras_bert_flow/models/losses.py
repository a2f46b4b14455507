"""Losses and metrics which Keras lacks for these output shapes."""

import keras
from keras import ops

from keras_bert_flow.models.defaults import TokenAccuracy, TokenLoss


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class SquaredError(keras.losses.Loss):
    """The squared error of each row's one number; Keras' own takes the mean over the last axis, here that of rows."""

    def __init__(self, reduction="mean_with_sample_weight", **kwargs):
        super().__init__(reduction=reduction, **kwargs)

    def call(self, y_true, y_pred):
        return ops.square(ops.reshape(y_true, ops.shape(y_pred)) - y_pred)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TagLoss(TokenLoss):
    """The cross-entropy of the tokens that have a label; one below 0, as -1 or -100, is no label and has no weight."""

    def __init__(self, reduction="mean_with_sample_weight", **kwargs):
        super().__init__(reduction=reduction, **kwargs)

    def __call__(self, y_true, y_pred, sample_weight=None):
        return super().__call__(*weigh_tags(y_true, y_pred, sample_weight))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TagAccuracy(TokenAccuracy):
    """The accuracy over the tokens that have a label, as for `TagLoss`."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        return super().update_state(*weigh_tags(y_true, y_pred, sample_weight))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class LabelAccuracy(keras.metrics.Mean):
    """The share of labels, each on its own, that a logit of more than 0 says right; Keras' own takes no such logits."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        is_right = ops.equal(ops.convert_to_tensor(y_pred) > 0, ops.cast(y_true, "float32") > 0.5)
        return super().update_state(ops.mean(ops.cast(is_right, "float32"), axis=-1), sample_weight)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BinaryTokenLoss(keras.losses.Loss):
    """The binary cross-entropy of each token's logit, (batch, length); Keras' own takes the mean over a row."""

    def __init__(self, reduction="mean_with_sample_weight", **kwargs):
        super().__init__(reduction=reduction, **kwargs)

    def call(self, y_true, y_pred):
        return ops.binary_crossentropy(ops.cast(y_true, y_pred.dtype), y_pred, from_logits=True)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BinaryTokenAccuracy(keras.metrics.Mean):
    """The share of tokens whose logit, above 0 or not, says the label."""

    def update_state(self, y_true, y_pred, sample_weight=None):
        is_right = ops.equal(ops.convert_to_tensor(y_pred) > 0, ops.cast(y_true, "float32") > 0.5)
        return super().update_state(ops.cast(is_right, "float32"), sample_weight)


def weigh_tags(labels, logits, sample_weight=None):
    """Return labels of 0 or more, the logits, and weights that leave out what had none.

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
