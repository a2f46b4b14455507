"""Choose losses, metrics and an optimizer where `compile()` is given none."""

import keras
from keras import ops

# What is never decayed, by `variable.name`: a path such as `layer_norm` matches nothing in Keras 3. On TensorFlow the
# optimizer sees variables named like `pooler/dense/bias:0`. A test pins the paths that this leaves to be decayed.
UNDECAYED_NAMES = (r"(^|/)(bias|gamma|beta)(:0)?$",)


def token_loss(is_sum=False):
    """Return the cross-entropy of integer labels, averaged over sample weights.

    Dividing by the sum of the weights, not by the number of slots, keeps filler out of the mean.

    Args:
        is_sum: do not divide, for weights that are divided beforehand (`data.accumulation`).
    """
    reduction = "sum" if is_sum else "mean_with_sample_weight"
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)


def token_accuracy():
    """Return the share of integer labels that are the largest logit."""
    return keras.metrics.SparseCategoricalAccuracy(name="accuracy")


def dense_gradients(gradients):
    """Turn gradients that TensorFlow gives as rows with their numbers into whole ones.

    The gradient of a gather names a row as often as it was gathered. Keras' norms and squares take each mention by
    itself, where their sum is meant.
    """
    return [
        ops.segment_sum(gradient.values, gradient.indices, gradient.dense_shape[0])
        if hasattr(gradient, "dense_shape")
        else gradient
        for gradient in gradients
    ]


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class DenseAdamW(keras.optimizers.AdamW):
    """Keras' AdamW, right for gathered embeddings on TensorFlow as well; see `dense_gradients`."""

    def apply(self, grads, trainable_variables=None):
        return super().apply(dense_gradients(grads), trainable_variables)


def make_adamw(learning_rate, weight_decay=0.01, clip_norm=1.0, **options):
    """Return AdamW that decays all but biases and layer norms.

    Args:
        learning_rate: a number or a schedule.
        weight_decay: decoupled decay.
        clip_norm: largest global norm of the gradient.
        options: further arguments of `keras.optimizers.AdamW`.
    Source: Devlin et al. 2019, appendix A.2; epsilon from google-research/bert, optimization.py. Unlike the original,
    this corrects the bias of the first steps, as Adam's authors do.
    """
    # PyTorch has its faster form for the very class of Keras only, and has no such gradients.
    kind = DenseAdamW if keras.backend.backend() == "tensorflow" else keras.optimizers.AdamW
    optimizer = kind(
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        epsilon=1e-6,
        global_clipnorm=clip_norm,
        name="adamw",  # by default it counts the optimizers of the process, and a checkpoint would not fit the next
        **options,
    )
    optimizer.exclude_from_weight_decay(var_names=list(UNDECAYED_NAMES))
    return optimizer
