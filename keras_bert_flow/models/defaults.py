"""Choose losses, metrics and an optimizer where `compile()` is given none."""

import keras

# By `variable.name`: a path such as `layer_norm` matches nothing in Keras 3.
UNDECAYED_NAMES = ("bias", "gamma", "beta")


def token_loss():
    """Return the cross-entropy of integer labels, averaged over sample weights.

    Dividing by the sum of the weights, not by the number of slots, keeps filler out of the mean.
    """
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")


def token_accuracy():
    """Return the share of integer labels that are the largest logit."""
    return keras.metrics.SparseCategoricalAccuracy(name="accuracy")


def default_optimizer(model, learning_rate):
    """Return AdamW at a constant rate, decaying all but biases and layer norms, norm clipped to 1.

    Source: Devlin et al. 2019, appendix A.2, without its schedule, which needs to know how long training lasts.
    """
    optimizer = keras.optimizers.AdamW(
        learning_rate=learning_rate, weight_decay=0.01, epsilon=1e-6, global_clipnorm=1.0
    )
    undecayed = [variable for variable in model.trainable_variables if variable.name in UNDECAYED_NAMES]
    optimizer.exclude_from_weight_decay(var_list=undecayed)
    return optimizer
