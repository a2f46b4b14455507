"""Default losses, metrics and optimizer of `compile()`."""

import keras
from keras import ops

from keras_bert_flow.backends.cross_entropy import best_classes, cross_entropies, is_computable
from keras_bert_flow.backends.fusion import fuse
from keras_bert_flow.models.fused_adamw import choose_adamw

EPSILON = 1e-6  # google-research/bert, optimization.py


@fuse
def _cross_entropies(labels, logits):
    """Return the cross-entropy of each row, (rows,), without computing the log-softmax of the other classes."""
    picked = ops.take_along_axis(logits, ops.expand_dims(labels, -1), axis=-1)[:, 0]
    return ops.logsumexp(logits, axis=-1) - picked


def are_distributions(labels, logits):
    """Return whether labels are probabilities of classes, one-hot ones included, and not ids."""
    return len(labels.shape) == len(logits.shape) > 1 and labels.shape[-1] == logits.shape[-1] not in (1, None)


def share_logits(labels, logits):
    """Return whether all labels of a row, (batch, labels), share one set of logits, (batch, 1, classes)."""
    return len(logits.shape) == 3 and logits.shape[1] == 1 and len(labels.shape) == 2 and labels.shape[1] != 1


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TokenLoss(keras.losses.SparseCategoricalCrossentropy):
    """Sparse categorical cross-entropy of logits, computed by rows; labels that share logits each have a loss.

    One-hot labels, or other probabilities of the classes, are taken as they are. A label that is no class has the loss
    NaN, on every backend, unless its weight is 0.

    Outputs with one number per position, (batch, positions, 1), are taken as losses that the model has computed itself.

    Keras passes three-dimensional logits to PyTorch with the vocabulary as the middle axis, which takes twice as long,
    and on JAX multiplies logits by one-hot labels. For PyTorch on a CPU see `backends.cross_entropy`.
    """

    def __init__(self, from_logits=True, **kwargs):
        super().__init__(from_logits=from_logits, **kwargs)

    def __call__(self, y_true, y_pred, sample_weight=None):
        return super().__call__(_leave_out(y_true, sample_weight), y_pred, sample_weight)

    def call(self, y_true, y_pred):
        if len(y_pred.shape) == 3 and y_pred.shape[-1] == 1:
            return y_pred[..., 0]
        if are_distributions(y_true, y_pred):
            return -ops.sum(ops.cast(y_true, y_pred.dtype) * ops.log_softmax(y_pred, axis=-1), axis=-1)
        is_class = find_classes(y_true, ops.shape(y_pred)[-1])
        losses = self._find_entropies(ops.where(is_class, y_true, ops.zeros_like(y_true)), y_pred)
        is_class = ops.reshape(is_class, ops.shape(losses))
        return ops.where(is_class, losses, ops.cast(float("nan"), losses.dtype))

    def _find_entropies(self, y_true, y_pred):
        if share_logits(y_true, y_pred):
            logits = ops.convert_to_tensor(y_pred)[:, 0]  # (batch, classes)
            picked = ops.take_along_axis(logits, ops.cast(y_true, "int32"), axis=-1)
            return ops.logsumexp(logits, axis=-1, keepdims=True) - picked
        logits = ops.reshape(y_pred, (-1, ops.shape(y_pred)[-1]))  # for spans, the classes are the tokens
        labels = ops.cast(ops.reshape(y_true, (-1,)), "int32")
        if is_computable(logits):
            losses = cross_entropies(logits, labels)
        elif keras.backend.backend() == "torch":
            losses = ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)
        else:
            losses = _cross_entropies(labels, logits)
        return ops.reshape(losses, ops.shape(y_pred)[:-1])


def find_classes(labels, count):
    """Return which integer labels are classes, from 0 to `count` - 1, bool."""
    labels = ops.convert_to_tensor(labels)
    return ops.logical_and(labels >= 0, labels < ops.cast(count, labels.dtype))


def _leave_out(labels, weights):
    """Return labels with 0 in place of those without a weight, which may be of no class."""
    if weights is None:
        return labels
    labels, weights = ops.convert_to_tensor(labels), ops.convert_to_tensor(weights)
    if len(weights.shape) > len(labels.shape):
        weights = ops.reshape(weights, ops.shape(labels))
    while len(weights.shape) < len(labels.shape):
        weights = ops.expand_dims(weights, -1)
    return ops.where(ops.equal(weights, 0), ops.zeros_like(labels), labels)


def token_loss(is_sum=False):
    """Return the cross-entropy loss of integer labels, averaged over sample weights.

    The sum is divided by that of the weights, not by the number of positions, to keep filler out of the mean.

    Args:
        is_sum: use sum reduction, for weights that are already divided (`data.accumulation`).
    """
    return TokenLoss(reduction="sum" if is_sum else "mean_with_sample_weight")


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TokenAccuracy(keras.metrics.SparseCategoricalAccuracy):
    """Sparse categorical accuracy, faster than Keras' on JAX and on PyTorch on a CPU.

    On JAX it compares logits with that of the label, which XLA fuses into one pass, unlike an `argmax`. For PyTorch on
    a CPU it uses NumPy's `argmax`.
    """

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        if are_distributions(y_true, y_pred):
            y_true = ops.argmax(y_true, axis=-1)
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
        is_first = ops.logical_and(is_first, find_classes(labels, y_pred.shape[-1])[..., 0])
        return keras.metrics.Mean.update_state(self, ops.cast(is_first, self.dtype), sample_weight)


def token_accuracy():
    """Return the accuracy metric of integer labels: the share that equals the argmax, the first of ties."""
    return TokenAccuracy(name="accuracy")


def make_adamw(learning_rate, weight_decay=0.01, clip_norm=1.0, epsilon=EPSILON, **options):
    """Return AdamW without weight decay on biases and layer norms.

    Args:
        learning_rate: a number or a schedule.
        weight_decay: decoupled decay.
        clip_norm: maximum global norm of the gradient.
        epsilon: added to the root of the second moment, before bias correction.
        options: further arguments of `keras.optimizers.AdamW`.
    Source: Devlin et al. 2019, appendix A.2. Unlike the original, it has the bias correction of Adam's authors.
    """
    return choose_adamw(is_plain=options.keys() <= {"gradient_accumulation_steps"})(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        epsilon=epsilon,
        global_clipnorm=clip_norm,
        name="adamw",  # default names count the optimizers of the process, so a checkpoint would not fit in another
        **options,
    )
