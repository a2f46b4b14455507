"""Dense projection of the last axis, with a custom gradient on JAX."""

import keras
from keras import ops

from keras_bert_flow.backends.products import matmul


def _plainly(inputs, kernel, bias):
    outputs = matmul(inputs, kernel)
    return outputs if bias is None else ops.add(outputs, bias)


def _make_projection():
    """Return the projection function of the backend."""
    if keras.backend.backend() != "jax":
        return _plainly
    import jax

    project = jax.custom_vjp(_plainly)

    def remember(inputs, kernel, bias):
        return project(inputs, kernel, bias), (inputs, kernel, bias)

    def differentiate(remembered, gradient):
        inputs, kernel, bias = remembered
        rows = gradient.reshape(-1, gradient.shape[-1])
        of_inputs = jax.lax.dot_general(rows, kernel, (((1,), (1,)), ((), ())))
        of_kernel = jax.lax.dot_general(inputs.reshape(-1, inputs.shape[-1]), rows, (((0,), (0,)), ((), ())))
        return of_inputs.reshape(inputs.shape), of_kernel, None if bias is None else sum_rows(rows)

    def sum_rows(rows):
        ones = jax.numpy.ones(len(rows), rows.dtype)
        sums = jax.lax.dot_general(ones, rows, (((0,), (0,)), ((), ())), preferred_element_type="float32")
        return sums.astype(rows.dtype)

    project.defvjp(remember, differentiate)
    return lambda *tensors: project(*(None if tensor is None else ops.convert_to_tensor(tensor) for tensor in tensors))


_project = _make_projection()


def project(inputs, kernel, bias):
    """Return the product of (..., inputs) and (inputs, outputs), plus a bias unless it is None.

    The default kernel gradient of JAX is the transpose of (outputs, rows) by (rows, inputs). For it XLA copies the
    gradient of the outputs in each layer, and the product is slower on a CPU. The bias gradient is a product with ones:
    XLA would fuse a sum with everything that led to the gradient of the outputs, and so compute that twice.
    """
    return _project(inputs, kernel, bias)
