"""Take the steps of Keras' AdamW in one pass over the weights, where the backend's own form needs several."""

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

# On PyTorch an AdamW is of another class, which takes many weights in a call; Keras gives no subclass of AdamW that.
# Not initialised: that would take memory on the device before a process has chosen its own.
_KerasAdamW: Any = type(keras.optimizers.AdamW.__new__(keras.optimizers.AdamW))


class _AdamW(ExcludesNames, _KerasAdamW):
    """What the forms of AdamW below share."""

    @classmethod
    def from_config(cls, config):
        """Return the AdamW that is fastest here: a saved model may be loaded on another backend or device."""
        chosen = choose_adamw(is_plain=not any(map(config.get, UNFUSED)))
        return super().from_config(config) if chosen is cls else chosen.from_config(config)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class DenseAdamW(_AdamW):
    """Keras' AdamW for TensorFlow: fused, and right for gathered embeddings as well; see `dense_gradients`."""

    def apply(self, grads, trainable_variables=None):
        return super().apply(dense_gradients(grads), trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)  # what Keras gives to its subclasses, underscore and all
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
    """Keras' AdamW for PyTorch on a processor, by PyTorch's fused one.

    Keras makes about twelve passes over all weights, some into new memory; this reads and writes everything once, and
    divides the gradients by what clips them on the way. Accumulated gradients are added up in place. It takes none
    of `UNFUSED`.
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
    """Keras' AdamW, for jax and for PyTorch on an accelerator."""

    def _apply_weight_decay(self, variables):
        # Where biases alone are trained there is nothing to decay, and PyTorch takes no empty list.
        if any(map(self._use_weight_decay, variables)):
            super()._apply_weight_decay(variables)


def choose_adamw(is_plain):
    """Return the class that is fastest here.

    Args:
        is_plain: whether it does without what is in `UNFUSED`.
    """
    if keras.backend.backend() == "tensorflow":
        return DenseAdamW
    return FusedAdamW if is_plain and is_torch_on_processor() else ExcludingAdamW
