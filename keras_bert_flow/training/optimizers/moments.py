"""Share what our optimizers have in common: two moments of each gradient, weights left out, rates of their own."""

import math
import re

import keras
from keras import ops

from keras_bert_flow.backends.adamw import dense_gradients
from keras_bert_flow.models.decay_exclusions import UNDECAYED_NAMES
from keras_bert_flow.models.defaults import EPSILON


class MomentOptimizer(keras.optimizers.Optimizer):
    """Step along a direction that a subclass makes of the moments of the gradient.

    Keras' own decay stands outside of the update and forgets its exclusions when it is saved, so the decay is part of
    the direction here. Which weights are excluded, and their rates, is told by `variable.path` when the optimizer is
    built: on TensorFlow the variables of a step have other names.

    Args:
        learning_rate: a number or a schedule.
        weight_decay: decoupled decay.
        beta_1: how much of the mean of the gradients is kept in a step.
        beta_2: how much of the mean of their squares is kept.
        epsilon: keeps the division finite.
        excluded_names: patterns of the paths that have no decay.
        rate_factors: path of a weight → what its learning rate is multiplied by; of others 1. See `layer_rates`.
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
        index = self._get_variable_index(variable)  # what Keras gives to its subclasses, underscore and all
        momentum, velocity = self._momentums[index], self._velocities[index]
        gradient = ops.cast(gradient, variable.dtype)
        self.assign_add(momentum, ops.multiply(ops.subtract(gradient, momentum), 1 - self.beta_1))
        self.assign_add(velocity, ops.multiply(ops.subtract(ops.square(gradient), velocity), 1 - self.beta_2))
        rate = ops.cast(learning_rate, variable.dtype) * self._rate_factors[index]
        direction = self.find_direction(variable, momentum, velocity, self._is_excluded[index])
        self.assign_sub(variable, ops.multiply(direction, rate))

    def find_direction(self, variable, momentum, velocity, is_excluded):
        """Return what, times the rate, is taken from a variable; the moments hold this step's gradient already."""
        raise NotImplementedError

    def find_missing(self, beta, dtype):
        """Return 1 - beta^t, by which a mean that began at 0 is too small after t steps, to full precision."""
        return -ops.expm1(ops.cast(self.iterations + 1, dtype) * math.log(beta))

    def get_config(self):
        names = ("beta_1", "beta_2", "epsilon", "rate_factors")
        own = {name: getattr(self, name) for name in names}
        return super().get_config() | own | {"weight_decay": self.decay, "excluded_names": list(self.excluded_names)}
