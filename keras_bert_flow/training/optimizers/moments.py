"""Base class of optimizers with two moments, weight decay exclusions and learning rate factors by weight."""

import math
import re

import keras
from keras import ops

from keras_bert_flow.backends.adamw import dense_gradients
from keras_bert_flow.models.decay_exclusions import UNDECAYED_NAMES
from keras_bert_flow.models.defaults import EPSILON


class MomentOptimizer(keras.optimizers.Optimizer):
    """Base class of optimizers whose subclasses compute the update direction from two moments of the gradient.

    Keras applies weight decay outside of the update and does not save its exclusions, so decay is part of the direction
    here. Exclusions and rates are looked up by `variable.path` when the optimizer is built: on TensorFlow the variables
    of a step have other names.

    Args:
        learning_rate: a number or a schedule.
        weight_decay: decoupled decay.
        beta_1: decay rate of the first moment.
        beta_2: decay rate of the second moment.
        epsilon: added to the divisor, to keep the step finite.
        excluded_names: patterns of the paths without decay.
        rate_factors: weight path → factor of its learning rate. Default: 1. See `layer_rates`.
        kwargs: of `keras.optimizers.Optimizer`, such as `global_clipnorm`.
    """

    def __init__(
        self,
        learning_rate,
        weight_decay=0.01,
        beta_1=0.9,
        beta_2=0.999,
        epsilon=EPSILON,
        excluded_names=UNDECAYED_NAMES,
        rate_factors=None,
        **kwargs,
    ):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.decay = weight_decay  # `weight_decay` of the base class would be applied a second time
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon
        self.excluded_names = tuple(excluded_names)
        self.rate_factors = dict(rate_factors or {})

    def build(self, variables):
        if self.built:
            return
        paths = [variable.path for variable in variables]
        self._rate_factors = tuple(self.rate_factors.get(path, 1.0) for path in paths)
        self._is_excluded = tuple(any(re.search(name, path) for name in self.excluded_names) for path in paths)
        super().build(variables)
        self._momentums, self._velocities = self.add_optimizer_variables(variables, ["momentum", "velocity"])

    def apply(self, grads, trainable_variables=None):
        return super().apply(dense_gradients(grads), trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)  # Keras leaves this private method to subclasses
        momentum, velocity = self._momentums[index], self._velocities[index]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_add(momentum, ops.multiply(ops.subtract(gradient, momentum), 1 - self.beta_1))
        self.assign_add(velocity, ops.multiply(ops.subtract(ops.square(gradient), velocity), 1 - self.beta_2))
        rate = ops.cast(learning_rate, variable.dtype) * self._rate_factors[index]
        direction = self.find_direction(variable, momentum, velocity, self._is_excluded[index])
        self.assign_sub(variable, ops.multiply(direction, rate))

    def find_direction(self, variable, momentum, velocity, is_excluded):
        """Return the update direction of a variable, to subtract times the rate; the moments include this step."""
        raise NotImplementedError

    def find_missing(self, beta, dtype):
        """Return the bias correction 1 - beta^t at step t, to full precision."""
        return -ops.expm1(ops.cast(self.iterations + 1, dtype) * math.log(beta))

    def get_config(self):
        names = ("beta_1", "beta_2", "epsilon", "rate_factors")
        own = {name: getattr(self, name) for name in names}
        return super().get_config() | own | {"weight_decay": self.decay, "excluded_names": list(self.excluded_names)}
