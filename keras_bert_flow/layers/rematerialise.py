"""Compute a part of a layer again in the backward pass instead of keeping what it computed."""

import keras
from keras import ops


def rematerialise(layer, function, *inputs):
    """Call a function of a built layer and keep its inputs alone for the gradients.

    It is made a function of the layer's weights and dropout seeds, so that the second time it draws the same masks and
    moves no seed on. `keras.RematScope` (3.15) leaves both inside: jax and TensorFlow then refuse to build the model,
    and PyTorch draws other masks the second time, whose gradients are not those of the loss.

    Args:
        layer: whose weights and seeds the function uses, and no other state.
        function: of tensors.
        inputs: its arguments.
    Returns:
        What the function returns.
    """
    weights, seeds = layer.trainable_variables, layer.non_trainable_variables

    def compute(weight_values, seed_values, *arguments):
        mapping = [*zip(weights, weight_values, strict=True), *zip(seeds, seed_values, strict=True)]
        with keras.StatelessScope(state_mapping=mapping) as scope:
            outputs = function(*arguments)
        return outputs, [scope.get_current_value(seed) for seed in seeds]

    weight_values = [ops.convert_to_tensor(weight.value) for weight in weights]
    seed_values = [ops.copy(seed.value) for seed in seeds]  # PyTorch would move the very tensors on
    outputs, states = keras.remat(compute)(weight_values, seed_values, *inputs)
    for seed, state in zip(seeds, states, strict=True):
        seed.assign(state)
    return outputs
