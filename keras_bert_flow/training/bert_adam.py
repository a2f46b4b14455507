"""Step as the original BERT did: Adam with decoupled decay, without correcting the bias of the first steps."""

import keras
from keras import ops

from keras_bert_flow.models.fused_adamw import is_torch_on_processor, step_by_torch
from keras_bert_flow.training.moments import MomentOptimizer


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BertAdam(MomentOptimizer):
    """Adam with decoupled decay, uncorrected unless told otherwise.

    Without correction the first steps are larger: the mean of squares is too small by 1 - 0.999^t, the mean of
    gradients by 1 - 0.9^t only.

    Args:
        bias_correction: correct it, which makes this AdamW; it is here for rates by depth, which Keras' AdamW lacks.
        kwargs: see `MomentOptimizer`.
    Source: google-research/bert, optimization.py, `AdamWeightDecayOptimizer`; the correction is that of Kingma and
    Ba 2015, the end of section 2, as Keras has it.
    """

    def __init__(self, learning_rate, bias_correction=False, name="bert_adam", **kwargs):
        super().__init__(learning_rate, name=name, **kwargs)
        self.bias_correction = bias_correction

    def update_step(self, gradient, variable, learning_rate):
        if not (self.bias_correction and is_torch_on_processor()):
            return super().update_step(gradient, variable, learning_rate)
        index = self._get_variable_index(variable)  # what Keras gives to its subclasses, underscore and all
        step_by_torch(
            [variable.value],
            [gradient.contiguous()],
            [self._momentums[index].value],
            [self._velocities[index].value],
            int(self.iterations),
            float(learning_rate) * self._rate_factors[index],
            (self.beta_1, self.beta_2, self.epsilon),
            0.0 if self._is_excluded[index] else self.decay,
        )

    def find_direction(self, variable, momentum, velocity, is_excluded):
        direction = ops.divide(momentum, ops.add(ops.sqrt(velocity), self.epsilon))
        if self.bias_correction:
            missing = [self.find_missing(beta, variable.dtype) for beta in (self.beta_1, self.beta_2)]
            direction = ops.multiply(direction, ops.sqrt(missing[1]) / missing[0])
        return direction if is_excluded else ops.add(direction, ops.multiply(variable, self.decay))

    def get_config(self):
        return super().get_config() | {"bias_correction": self.bias_correction}
