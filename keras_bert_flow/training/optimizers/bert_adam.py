"""BertAdam, the optimizer of the original BERT: Adam with decoupled weight decay and without bias correction."""

from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.adamw import apply_at_once, step_by_torch
from keras_bert_flow.backends.processor import is_torch_on_processor
from keras_bert_flow.training.optimizers.moments import MomentOptimizer


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BertAdam(MomentOptimizer):
    """Adam with decoupled weight decay, by default without bias correction.

    Without correction the first steps are larger: the second moment is too small by a factor of 1 - 0.999^t, the first
    only by 1 - 0.9^t.

    Args:
        bias_correction: correct the bias, which makes this AdamW, with layer-wise rates, which Keras' AdamW lacks.
        kwargs: see `MomentOptimizer`.
    Source: google-research/bert, optimization.py, `AdamWeightDecayOptimizer`; the bias correction is that of Kingma
    and Ba 2015, end of section 2, as in Keras.
    """

    def __init__(self, learning_rate, bias_correction=False, name="bert_adam", **kwargs):
        super().__init__(learning_rate, name=name, **kwargs)
        self.bias_correction = bias_correction

    def apply(self, grads, trainable_variables=None):
        if self.steps_in_torch():
            apply_at_once(self, grads, trainable_variables, self.step_all)
        else:
            super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)  # Keras leaves this private method to subclasses
        if self.bias_correction and is_torch_on_processor():
            self.step_all([(gradient.contiguous(), variable, index)], None, float(learning_rate))
        else:
            super().update_step(gradient, variable, learning_rate)

    def steps_in_torch(self):
        """Return whether PyTorch takes the whole step: bias correction, no accumulation, EMA or per-weight clipping."""
        kept_apart = (self.gradient_accumulation_steps, self.use_ema, self.clipnorm, self.clipvalue)
        return self.bias_correction and is_torch_on_processor() and not any(kept_apart)

    def step_all(self, given, scale, learning_rate):
        """Apply the gradients from `apply_at_once`, with one call for all weights of the same rate and decay."""
        groups: dict[tuple[Any, Any], list[tuple]] = {}
        for gradient, variable, index in given:
            kind = self._rate_factors[index], 0.0 if self._is_excluded[index] else self.decay
            groups.setdefault(kind, []).append((variable.value, gradient, *self._find_moments(index)))
        for (factor, decay), tensors in groups.items():
            weights, gradients, momentums, velocities = map(list, zip(*tensors, strict=True))
            step_by_torch(
                weights,
                gradients,
                momentums,
                velocities,
                int(self.iterations),
                learning_rate * factor,
                (self.beta_1, self.beta_2, self.epsilon),
                decay,
                scale,
            )

    def _find_moments(self, index):
        return self._momentums[index].value, self._velocities[index].value

    def find_direction(self, variable, momentum, velocity, is_excluded):
        direction = ops.divide(momentum, ops.add(ops.sqrt(velocity), self.epsilon))
        if self.bias_correction:
            missing = [self.find_missing(beta, variable.dtype) for beta in (self.beta_1, self.beta_2)]
            direction = ops.multiply(direction, ops.sqrt(missing[1]) / missing[0])
        return direction if is_excluded else ops.add(direction, ops.multiply(variable, self.decay))

    def get_config(self):
        return super().get_config() | {"bias_correction": self.bias_correction}
