"""Rematerialisation (gradient checkpointing): recompute part of a layer in the backward pass to save memory."""

import keras
from keras import ops


def rematerialise(layer, function, *inputs):
    """Call a function of a built layer, saving only its inputs for the gradients.

    It is made a pure function of the layer's weights and dropout seeds, so that the recomputation draws the same masks
    and advances no seed. `keras.RematScope` (3.15) captures both: JAX and TensorFlow then refuse to build the model,
    and PyTorch draws other masks in the recomputation, so the gradients are not those of the loss.

    Args:
        layer: the layer whose weights and seeds the function uses; it uses no other state.
        function: a function of tensors.
        inputs: its arguments.
    Returns:
        The outputs of the function.
    """
    weights, seeds = layer.trainable_variables, layer.non_trainable_variables

    def compute(weight_values, seed_values, *arguments):
        mapping = [*zip(weights, weight_values, strict=True), *zip(seeds, seed_values, strict=True)]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            outputs = function(*arguments)
        return outputs, [scope.get_current_value(seed) for seed in seeds]

    weight_values = [ops.convert_to_tensor(weight.value) for weight in weights]
    seed_values = [ops.copy(seed.value) for seed in seeds]  # PyTorch would advance these tensors in place
    outputs, states = keras.remat(compute)(weight_values, seed_values, *inputs)
    for seed, state in zip(seeds, states, strict=True):
        seed.assign(state)
    return outputs
