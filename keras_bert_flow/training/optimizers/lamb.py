"""Step in proportion to the size of each weight matrix, for large batches: LAMB as it was published."""

import keras
from keras import ops

from keras_bert_flow.training.optimizers.moments import MomentOptimizer


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Lamb(MomentOptimizer):
    """LAMB: a weight moves by the rate times its own norm, along the corrected Adam direction plus decay.

    Layer norms and biases have neither decay nor the ratio of norms, as in the authors' code; a matrix whose norm, or
    whose direction's, is 0 has the ratio 1. `keras.optimizers.Lamb` decays outside of the ratio and excludes nothing.

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
