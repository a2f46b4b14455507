"""Muon for the matrices of the encoder, with AdamW for all other weights."""

import keras
from keras import ops

from keras_bert_flow.backends.muon import orthogonalise_together, step_matrices
from keras_bert_flow.backends.processor import is_torch_on_processor
from keras_bert_flow.backends.products import product_dtype
from keras_bert_flow.training.optimizers.bert_adam import BertAdam

# Quintic Newton-Schulz iteration, which brings singular values from near 0 to between 0.7 and 1.2 in five steps.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Muon(BertAdam):
    """Muon for the matrices of the encoder blocks; AdamW for embeddings, heads, biases and layer norms.

    A matrix moves along its Nesterov momentum, orthogonalised so that all singular values are near 1, times
    sqrt(outputs / inputs) if that is above 1. Query, key and value are treated as three matrices, though they are one
    variable. `keras.optimizers.Muon` treats them as one, and has no factor between the two learning rates.

    Args:
        matrices: path → number of heads for a fused query-key-value matrix, whose columns are ordered (heads, 3,
            head_dim), or 0 for any other matrix. `Backbone.list_matrices` returns those of an encoder.
        matrix_rate_factor: the learning rate of the matrices, divided by that of all other weights.
        momentum: decay rate of the momentum of matrices.
        product_type: `bfloat16` orthogonalises in bfloat16, if the CPU is fast in it; see `product_dtype`.
        kwargs: see `MomentOptimizer`.
    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon.
    """

    def __init__(
        self,
        learning_rate,
        matrices,
        matrix_rate_factor=20.0,
        momentum=0.95,
        product_type="float32",
        name="muon",
        **kwargs,
    ):
        kwargs["bias_correction"] = True
        super().__init__(learning_rate, name=name, **kwargs)
        self.matrices = dict(matrices)
        self.matrix_rate_factor = matrix_rate_factor
        self.momentum = momentum
        self.product_type = product_type

    def build(self, variables):
        if not self.built:
            self._is_matrix = tuple(variable.path in self.matrices for variable in variables)
            self._heads = tuple(self.matrices.get(variable.path, 0) for variable in variables)
        super().build(variables)

    def step_all(self, given, scale, learning_rate):
        matrices = [entry for entry in given if self._is_matrix[entry[2]]]
        super().step_all([entry for entry in given if not self._is_matrix[entry[2]]], scale, learning_rate)
        if not matrices:
            return
        heads = [self._heads[index] for _, _, index in matrices]
        step_matrices(
            [variable.value for _, variable, _ in matrices],
            [gradient for gradient, _, _ in matrices],
            [self._momentums[index].value for _, _, index in matrices],
            lambda ahead: self._find_directions(ahead, heads),
            self.momentum,
            [learning_rate * self.matrix_rate_factor * self._rate_factors[index] for _, _, index in matrices],
            self.decay,
            scale,
        )

    def _find_directions(self, matrices, heads):
        parted = [part(matrix, count) if count else matrix for matrix, count in zip(matrices, heads, strict=True)]
        found = orthogonalise_together(parted, self.product_type, COEFFICIENTS, ITERATIONS)
        return [join(parts, count) if count else parts for parts, count in zip(found, heads, strict=True)]

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)  # Keras leaves this private method to subclasses
        if not self._is_matrix[index] or is_torch_on_processor():
            return super().update_step(gradient, variable, learning_rate)
        gradient = ops.cast(gradient, variable.dtype)
        momentum = ops.add(ops.multiply(self._momentums[index], self.momentum), gradient)
        self.assign(self._momentums[index], momentum)
        ahead = ops.add(gradient, ops.multiply(momentum, self.momentum))
        direction = ops.add(self._find_orthogonal(ahead, self._heads[index]), ops.multiply(variable, self.decay))
        rate = ops.cast(learning_rate, variable.dtype) * (self.matrix_rate_factor * self._rate_factors[index])
        self.assign_sub(variable, ops.multiply(direction, rate))

    def _find_orthogonal(self, matrix, heads):
        if not heads:
            return orthogonalise(matrix, self.product_type)
        return join(orthogonalise(part(matrix, heads), self.product_type), heads)

    def get_config(self):
        names = ("matrices", "matrix_rate_factor", "momentum", "product_type")
        config = super().get_config() | {name: getattr(self, name) for name in names}
        del config["bias_correction"]
        return config


def part(kernel, heads):
    """Split a fused query-key-value kernel into (3, inputs, outputs / 3)."""
    inputs, outputs = kernel.shape
    parts = ops.reshape(kernel, (inputs, heads, 3, outputs // (3 * heads)))
    return ops.reshape(ops.transpose(parts, (2, 0, 1, 3)), (3, inputs, outputs // 3))


def join(parts, heads):
    """Join query, key and value to a fused kernel; the inverse of `part`."""
    _, inputs, outputs = parts.shape
    parts = ops.reshape(parts, (3, inputs, heads, outputs // heads))
    return ops.reshape(ops.transpose(parts, (1, 2, 0, 3)), (inputs, 3 * outputs))


def orthogonalise(matrices, product_type="float32"):
    """Orthogonalise matrices: keep their singular vectors, bring singular values near 1, and scale them for a step.

    Args:
        matrices: float, (..., inputs, outputs).
        product_type: dtype of the matrix products.
    Returns:
        The dtype and shape of `matrices`, times sqrt(outputs / inputs) if that is above 1.
    """
    first, second, third = COEFFICIENTS
    inputs, outputs = matrices.shape[-2:]
    values = ops.swapaxes(matrices, -1, -2) if inputs > outputs else matrices  # the smaller products
    values = values / (ops.sqrt(ops.sum(ops.square(values), axis=(-2, -1), keepdims=True)) + 1e-7)
    values = ops.cast(values, product_dtype(product_type))
    for _ in range(ITERATIONS):
        gram = ops.matmul(values, ops.swapaxes(values, -1, -2))
        values = first * values + ops.matmul(second * gram + third * ops.matmul(gram, gram), values)
    values = ops.cast(values, matrices.dtype) * max(1.0, outputs / inputs) ** 0.5
    return ops.swapaxes(values, -1, -2) if inputs > outputs else values
