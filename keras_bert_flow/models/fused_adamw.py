"""Take the steps of Keras' AdamW in one pass over the weights, where the backend's own form needs several."""

import math

import keras
from keras import ops

from keras_bert_flow.layers.fusion import fuse
from keras_bert_flow.models.decay_exclusions import ExcludesNames

UNFUSED = ("use_ema", "loss_scale_factor", "clipnorm", "clipvalue")  # arguments that the form for PyTorch cannot take


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


class _AdamW(ExcludesNames, keras.optimizers.AdamW):
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
        import tensorflow

        index = self._get_variable_index(variable)  # what Keras gives to its subclasses, underscore and all
        places = self._momentums[index], self._velocities[index], variable
        step = ops.cast(self.iterations + 1, "float32")
        missing_1, missing_2 = (1 - ops.power(beta, step) for beta in (self.beta_1, self.beta_2))
        rate = ops.cast(learning_rate, "float32") * ops.sqrt(missing_2) / missing_1
        values = [tensorflow.convert_to_tensor(place) for place in places]
        for place, value in zip(places, _step(gradient, *values, rate, *self._constants()), strict=True):
            self.assign(place, value)

    def _constants(self):
        return self.beta_1, self.beta_2, self.epsilon


@fuse
def _step(gradient, momentum, velocity, weight, rate, beta_1, beta_2, epsilon):
    momentum = momentum + (gradient - momentum) * (1 - beta_1)
    velocity = velocity + (ops.square(gradient) - velocity) * (1 - beta_2)
    return momentum, velocity, weight - momentum * rate / (ops.sqrt(velocity) + epsilon)


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


def apply_at_once(optimizer, grads, trainable_variables, step):
    """Do what `Optimizer.apply` does, with one call for all weights, for PyTorch on a processor.

    Gradients of the batches of a step are added up in place.

    Args:
        optimizer: clips by the global norm, if at all, and takes none of `UNFUSED`.
        grads, trainable_variables: what `apply` was given.
        step: called with a list of (gradient, variable, number of the variable), with what the gradients are still to
            be divided by (a tensor, or None), and with the learning rate.
    """
    import torch

    variables = list(optimizer._trainable_variables if trainable_variables is None else trainable_variables)
    if not optimizer.built:
        optimizer.build(variables)
    given = [
        (grad.contiguous(), variable, optimizer._get_variable_index(variable))
        for grad, variable in zip(grads, variables, strict=True)
        if grad is not None
    ]
    batches, done = optimizer.gradient_accumulation_steps or 1, int(optimizer._iterations)
    with torch.no_grad():
        if batches > 1:
            given = _add_up(optimizer, given, is_first=done % batches == 0)
        if (done + 1) % batches == 0:
            scale = _find_scale([grad for grad, _, _ in given], optimizer, batches)
            step(given, scale, float(optimizer.learning_rate))
    optimizer._iterations.assign_add(1)  # of batches; `iterations` is that of steps


def _add_up(optimizer, given, is_first):
    """Return the sums of the gradients of a step's batches up to this one, in the place of its gradients."""
    grads = {index: grad for grad, _, index in given}
    for index, place in enumerate(optimizer._accumulated_gradients):
        if index in grads:
            (place.value.copy_ if is_first else place.value.add_)(grads[index])
        elif is_first:
            place.value.zero_()
    return [(optimizer._accumulated_gradients[index].value, variable, index) for _, variable, index in given]


def _find_scale(grads, optimizer, batches):
    """Return by what to divide sums of gradients: their number, or more where the mean has too large a norm."""
    import torch

    if optimizer.global_clipnorm is None or not grads:
        return None if batches == 1 else torch.tensor(float(batches))
    norm = torch.nn.utils.get_total_norm(grads) / batches
    clipped = torch.clamp(norm / optimizer.global_clipnorm, min=1.0) + (norm - norm)  # infinite norms make it NaN
    return batches * clipped


def step_by_torch(weights, gradients, momentums, velocities, done, rate, constants, weight_decay, scale=None):
    """Take a step of AdamW in place, by PyTorch's fused one.

    Args:
        weights, gradients, momentums, velocities: tensors of PyTorch on a processor, lists of equal length.
        done: steps before this one.
        rate: the learning rate.
        constants: beta_1, beta_2 and epsilon, the last as Keras has it.
        weight_decay: decoupled decay.
        scale: what the gradients are divided by, a tensor, or None.
    """
    import torch
    from torch.optim.adamw import adamw

    beta_1, beta_2, epsilon = constants
    adamw(
        weights,
        gradients,
        momentums,
        velocities,
        [],
        list(torch.full((len(weights),), float(done)).unbind()),
        fused=True,
        grad_scale=scale,
        amsgrad=False,
        beta1=beta_1,
        beta2=beta_2,
        lr=rate,
        weight_decay=weight_decay,
        # PyTorch adds epsilon to the root of the corrected moment, Keras to that of the plain one.
        eps=epsilon / math.sqrt(1 - beta_2 ** (done + 1)),
        maximize=False,
    )


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class ExcludingAdamW(_AdamW):
    """Keras' AdamW for jax."""


def choose_adamw(is_plain):
    """Return the class that is fastest here.

    Args:
        is_plain: whether it does without what is in `UNFUSED`.
    """
    if keras.backend.backend() == "tensorflow":
        return DenseAdamW
    if keras.backend.backend() == "jax":
        return ExcludingAdamW
    if is_plain and is_torch_on_processor():
        return FusedAdamW
    return keras.optimizers.AdamW  # of which PyTorch has a form with fewer launches, for this very class only


def is_torch_on_processor():
    """Say whether tensors are PyTorch's, on a processor."""
    return keras.backend.backend() == "torch" and ops.convert_to_tensor(0.0).device.type == "cpu"
