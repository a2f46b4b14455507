"""LAMB as published: layer-wise adaptive rates for large batches."""

import keras
from keras import ops

from keras_bert_flow.training.optimizers.moments import MomentOptimizer


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Lamb(MomentOptimizer):
    """LAMB: a weight moves by the rate times its norm, along the bias-corrected Adam direction plus decay.

    Layer norms and biases have no decay and no trust ratio, as in the authors' code. The trust ratio is 1 if the norm
    of the weight or its direction is 0. `keras.optimizers.Lamb` applies decay outside the ratio and excludes nothing.

    Args:
        kwargs: see `MomentOptimizer`.
    Source: You et al. 2020, algorithm 2, with the identity as phi; arXiv:1904.00962.
    """

    def __init__(self, learning_rate, name="lamb", **kwargs):
        super().__init__(learning_rate, name=name, **kwargs)

    def find_direction(self, variable, momentum, velocity, is_excluded):
        mean = ops.divide(momentum, self.find_missing(self.beta_1, variable.dtype))
        mean_square = ops.divide(velocity, self.find_missing(self.beta_2, variable.dtype))
        direction = ops.divide(mean, ops.add(ops.sqrt(mean_square), self.epsilon))
        if is_excluded:
            return direction
        direction = ops.add(direction, ops.multiply(variable, self.decay))
        return ops.multiply(direction, _trust_ratio(_norm(variable), _norm(direction)))


def _norm(values):
    return ops.sqrt(ops.sum(ops.square(values)))


def _trust_ratio(weight_norm, direction_norm):
    is_usable = ops.logical_and(weight_norm > 0, direction_norm > 0)
    return ops.where(is_usable, weight_norm / ops.where(is_usable, direction_norm, 1.0), 1.0)
