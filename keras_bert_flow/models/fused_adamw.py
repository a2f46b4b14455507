"""Keras' AdamW with fused steps: one pass over the weights, where the backend's version needs several."""

from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.adamw import (
    UNFUSED,
    apply_at_once,
    dense_gradients,
    step_at_once,
    step_by_torch,
)
from keras_bert_flow.backends.processor import is_torch_on_processor
from keras_bert_flow.backends.values import as_tensor
from keras_bert_flow.models.decay_exclusions import ExcludesNames

# On PyTorch, `AdamW()` returns an instance of another class, which updates many weights per call; Keras does not do so
# for subclasses. It is not initialised: that would allocate memory before the process has chosen its device.
_KerasAdamW: Any = type(keras.optimizers.AdamW.__new__(keras.optimizers.AdamW))


class _AdamW(ExcludesNames, _KerasAdamW):
    """Base class of the AdamW variants below."""

    @classmethod
    def from_config(cls, config):
        """Return the fastest AdamW for this backend and device, since they may differ from those of the saved model."""
        chosen = choose_adamw(is_plain=not any(map(config.get, UNFUSED)))
        return super().from_config(config) if chosen is cls else chosen.from_config(config)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class DenseAdamW(_AdamW):
    """AdamW for TensorFlow: fused, and correct for gathered embeddings; see `dense_gradients`."""

    def apply(self, grads, trainable_variables=None):
        return super().apply(dense_gradients(grads), trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)  # Keras leaves this private method to subclasses
        places = self._momentums[index], self._velocities[index], variable
        step = ops.cast(self.iterations + 1, "float32")
        missing_1, missing_2 = (1 - ops.power(beta, step) for beta in (self.beta_1, self.beta_2))
        rate = ops.cast(learning_rate, "float32") * ops.sqrt(missing_2) / missing_1
        values = [as_tensor(place) for place in places]
        for place, value in zip(places, step_at_once(gradient, *values, rate, *self._constants()), strict=True):
            self.assign(place, value)

    def _constants(self):
        return self.beta_1, self.beta_2, self.epsilon


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class FusedAdamW(_AdamW):
    """AdamW for PyTorch on a CPU, with PyTorch's fused kernel.

    Keras makes about twelve passes over all weights, some into new memory. This one reads and writes everything once,
    and applies gradient clipping in the same pass. Accumulated gradients are summed in place. It supports none of
    `UNFUSED`.
    """

    def apply(self, grads, trainable_variables=None):
        apply_at_once(self, grads, trainable_variables, self._step)

    def _step(self, given, scale, rate):
        for is_decayed in (True, False):
            chosen = [entry for entry in given if self._use_weight_decay(entry[1]) == is_decayed]
            indices = [index for _, _, index in chosen]
            step_by_torch(
                [variable.value for _, variable, _ in chosen],
                [gradient for gradient, _, _ in chosen],
                [self._momentums[index].value for index in indices],
                [self._velocities[index].value for index in indices],
                int(self.iterations),
                rate,
                (self.beta_1, self.beta_2, self.epsilon),
                self.weight_decay if is_decayed and self.weight_decay else 0.0,
                scale,
            )


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class ExcludingAdamW(_AdamW):
    """AdamW for JAX, and for PyTorch on an accelerator."""

    def _apply_weight_decay(self, variables):
        # If only biases are trained, there is nothing to decay, and PyTorch does not accept an empty list.
        if any(map(self._use_weight_decay, variables)):
            super()._apply_weight_decay(variables)


def choose_adamw(is_plain):
    """Return the fastest AdamW class for the current backend and device.

    Args:
        is_plain: whether no argument in `UNFUSED` is used.
    """
    if keras.backend.backend() == "tensorflow":
        return DenseAdamW
    return FusedAdamW if is_plain and is_torch_on_processor() else ExcludingAdamW
