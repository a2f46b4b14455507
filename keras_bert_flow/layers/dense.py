"""Project the last axis, at the cost of its matrix products."""

import keras
from keras import ops


def _make_product():
    """Return the product of (..., inputs) and (inputs, outputs)."""
    if keras.backend.backend() != "jax":
        return ops.matmul
    import jax

    @jax.custom_vjp
    def project(inputs, kernel):
        return jax.numpy.matmul(inputs, kernel)

    def remember(inputs, kernel):
        return project(inputs, kernel), (inputs, kernel)

    def differentiate(remembered, gradient):
        inputs, kernel = remembered
        rows = gradient.reshape(-1, gradient.shape[-1])
        of_inputs = jax.lax.dot_general(rows, kernel, (((1,), (1,)), ((), ())))
        of_kernel = jax.lax.dot_general(inputs.reshape(-1, inputs.shape[-1]), rows, (((0,), (0,)), ((), ())))
        return of_inputs.reshape(inputs.shape), of_kernel

    project.defvjp(remember, differentiate)
    return lambda inputs, kernel: project(ops.convert_to_tensor(inputs), ops.convert_to_tensor(kernel))


_project = _make_product()


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Dense(keras.layers.Dense):
    """`keras.layers.Dense`, whose kernel gets its gradient on jax without a copy of that of the outputs.

    By itself jax multiplies the other way round, (outputs, rows) by (rows, inputs), and transposes: XLA then copies the
    gradient of the outputs for each layer, and the product is slower on a processor.
    """

    def call(self, inputs, training=None):
        outputs = _project(inputs, self.kernel)
        if self.bias is not None:
            outputs = ops.add(outputs, self.bias)
        return outputs if self.activation is None else self.activation(outputs)
