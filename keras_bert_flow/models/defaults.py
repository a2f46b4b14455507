"""Choose losses, metrics and an optimizer where `compile()` is given none."""

import keras
from keras import ops

from keras_bert_flow.backends.cross_entropy import best_classes, cross_entropies, is_computable
from keras_bert_flow.backends.fusion import fuse
from keras_bert_flow.models.fused_adamw import choose_adamw

EPSILON = 1e-6  # google-research/bert, optimization.py


@fuse
def _cross_entropies(labels, logits):
    """Return -log softmax(logits)[label], (rows,), without the log-softmax of all the others."""
    picked = ops.take_along_axis(logits, ops.expand_dims(labels, -1), axis=-1)[:, 0]
    return ops.logsumexp(logits, axis=-1) - picked


def share_logits(labels, logits):
    """Say whether all labels of a row, (batch, labels), have the same logits, (batch, 1, classes)."""
    return len(logits.shape) == 3 and logits.shape[1] == 1 and len(labels.shape) == 2 and labels.shape[1] != 1


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TokenLoss(keras.losses.SparseCategoricalCrossentropy):
    """Keras' cross-entropy of logits, by rows; labels that share their logits have a loss each.

    One number for each of several places, (batch, places, 1), is a loss that the model has computed itself.

    Keras hands three-dimensional logits to PyTorch with the vocabulary in the middle, which takes twice as long, and
    multiplies those of jax with one-hot labels. On PyTorch on a processor see `torch_cross_entropy`.
    """

    def __init__(self, from_logits=True, **kwargs):
        super().__init__(from_logits=from_logits, **kwargs)

    def call(self, y_true, y_pred):
        if len(y_pred.shape) == 3 and y_pred.shape[-1] == 1:
            return y_pred[..., 0]
        if share_logits(y_true, y_pred):
            logits = ops.convert_to_tensor(y_pred)[:, 0]  # (batch, classes)
            picked = ops.take_along_axis(logits, ops.cast(y_true, "int32"), axis=-1)
            return ops.logsumexp(logits, axis=-1, keepdims=True) - picked
        logits = ops.reshape(y_pred, (-1, ops.shape(y_pred)[-1]))  # spans have as many classes as tokens
        labels = ops.cast(ops.reshape(y_true, (-1,)), "int32")
        if is_computable(logits):
            losses = cross_entropies(logits, labels)
        elif keras.backend.backend() == "torch":
            losses = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        else:
            losses = _cross_entropies(labels, logits)
        return ops.reshape(losses, ops.shape(y_pred)[:-1])


def token_loss(is_sum=False):
    """Return the cross-entropy of integer labels, averaged over sample weights.

    Dividing by the sum of the weights, not by the number of slots, keeps filler out of the mean.

    Args:
        is_sum: do not divide, for weights that are divided beforehand (`data.accumulation`).
    """
    return TokenLoss(reduction="sum" if is_sum else "mean_with_sample_weight")


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TokenAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """Keras' accuracy of integer labels.

    On jax it counts, which XLA fuses into one pass; not so an `argmax`. On PyTorch on a processor NumPy looks.
    """

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        if is_computable(y_pred):
            is_right = ops.equal(best_classes(y_pred), ops.reshape(y_true, ops.shape(y_pred)[:-1]))
            return keras.metrics.Mean.update_state(self, ops.cast(is_right, self.dtype), sample_weight)
        if keras.backend.backend() != "jax":
            return super().update_state(y_true, y_pred, sample_weight)
        labels = ops.reshape(ops.cast(y_true, "int32"), (*ops.shape(y_pred)[:-1], 1))
        picked = ops.take_along_axis(y_pred, labels, axis=-1)
        numbers = ops.arange(y_pred.shape[-1], dtype="int32")
        is_before = ops.logical_or(y_pred > picked, ops.logical_and(y_pred == picked, numbers < labels))
        is_first = ops.logical_not(ops.any(is_before, axis=-1))
        return keras.metrics.Mean.update_state(self, ops.cast(is_first, self.dtype), sample_weight)


def token_accuracy():
    """Return the share of integer labels that are the largest logit, the first of equal ones."""
    return TokenAccuracy(name="accuracy")


def make_adamw(learning_rate, weight_decay=0.01, clip_norm=1.0, epsilon=EPSILON, **options):
    """Return AdamW that decays all but biases and layer norms.

    Args:
        learning_rate: a number or a schedule.
        weight_decay: decoupled decay.
        clip_norm: largest global norm of the gradient.
        epsilon: added to the root of the mean square of a gradient, before its bias is corrected.
        options: further arguments of `keras.optimizers.AdamW`.
    Source: Devlin et al. 2019, appendix A.2. Unlike the original, this corrects the bias of the first steps, as Adam's
    authors do.
    """
    return choose_adamw(is_plain=options.keys() <= {"gradient_accumulation_steps"})(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        epsilon=epsilon,
        global_clipnorm=clip_norm,
        name="adamw",  # by default it counts the optimizers of the process, and a checkpoint would not fit the next
        **options,
    )
