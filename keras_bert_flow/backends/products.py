"""Matrix products in the dtype that is fast on the CPU, projections, splitting into heads, and minima of groups."""

from collections.abc import Callable

import keras
from keras import ops

from keras_bert_flow.backends.values import Tensor, value_of


def _is_bfloat16_slow() -> bool:
    """Return whether PyTorch on this CPU multiplies bfloat16 matrices element by element, far slower than float32.

    It uses oneDNN instead if the CPU has AVX-512, or the Arm equivalent.
    """
    if keras.backend.backend() != "torch":
        return False
    import torch

    return not (torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())


IS_BFLOAT16_SLOW = _is_bfloat16_slow()


def product_dtype(dtype: str) -> str:
    """Return the dtype in which to multiply tensors of a dtype: float32 where bfloat16 is slow, else the same."""
    dtype = keras.backend.standardize_dtype(dtype)
    is_slow = IS_BFLOAT16_SLOW and dtype == "bfloat16" and ops.zeros(()).device.type == "cpu"
    return "float32" if is_slow else dtype


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Return `ops.matmul` of two tensors of the same dtype; where bfloat16 is slow, the rounded float32 product.

    A CPU with bfloat16 products also accumulates in float32 and rounds. Keras itself does the same for float16.
    """
    if keras.backend.backend() != "torch":
        return ops.matmul(left, right)
    left, right = value_of(left), value_of(right)
    if left.dtype == right.dtype and str(left.dtype) == "torch.float32":
        return left.matmul(right)  # what Keras calls after a look at types and devices that takes as long
    if not IS_BFLOAT16_SLOW or left.device.type != "cpu" or str(left.dtype) != "torch.bfloat16":
        return ops.matmul(left, right)
    return ops.cast(ops.matmul(ops.cast(left, "float32"), ops.cast(right, "float32")), "bfloat16")


# Dense projection of the last axis, with a custom gradient on JAX.


def _with_jax_gradient(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Give `project` its gradient on JAX.

    The default kernel gradient of JAX is the transpose of (outputs, rows) by (rows, inputs). For it XLA copies the
    gradient of the outputs in each layer, and the product is slower on a CPU. The bias gradient is a product with ones:
    XLA would fuse a sum with everything that led to the gradient of the outputs, and so compute that twice.
    """
    if keras.backend.backend() != "jax":
        return plain
    import jax

    project = jax.custom_vjp(plain)

    def differentiate(
        remembered: tuple[Tensor, Tensor, Tensor | None], gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        inputs, kernel, bias = remembered
        rows = gradient.reshape(-1, gradient.shape[-1])
        of_inputs = jax.lax.dot_general(rows, kernel, (((1,), (1,)), ((), ())))
        of_kernel = jax.lax.dot_general(inputs.reshape(-1, inputs.shape[-1]), rows, (((0,), (0,)), ((), ())))
        of_bias = None
        if bias is not None:
            ones = jax.numpy.ones(len(rows), rows.dtype)
            sums = jax.lax.dot_general(ones, rows, (((0,), (0,)), ((), ())), preferred_element_type="float32")
            of_bias = sums.astype(rows.dtype)
        return of_inputs.reshape(inputs.shape), of_kernel, of_bias

    project.defvjp(lambda *given: (project(*given), given), differentiate)
    return lambda *tensors: project(*(None if tensor is None else ops.convert_to_tensor(tensor) for tensor in tensors))


@_with_jax_gradient
def project(inputs: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product of (..., inputs) and (inputs, outputs), plus a bias unless it is None."""
    outputs = matmul(inputs, kernel)
    if bias is None:
        return outputs
    return outputs + value_of(bias) if keras.backend.backend() == "torch" else ops.add(outputs, bias)


# Split a fused query-key-value projection into attention heads.


def _with_jax_merge(plain: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """Give `split_heads` its gradient on JAX, which pads that of a slice with zeros."""
    if keras.backend.backend() != "jax":
        return plain
    import jax

    split = jax.custom_vjp(plain, nondiff_argnums=(1, 2, 3))

    def differentiate(
        length: int, num_heads: int, head_dim: int, _: None, gradients: tuple[Tensor, ...]
    ) -> tuple[Tensor]:
        parts = [jax.numpy.swapaxes(gradient, 1, 2) for gradient in gradients]  # (batch, length, heads, head_dim)
        return (jax.numpy.stack(parts, axis=3).reshape(-1, length, 3 * num_heads * head_dim),)

    split.defvjp(lambda fused, *sizes: (split(fused, *sizes), None), differentiate)
    return lambda fused, length, num_heads, head_dim: split(ops.convert_to_tensor(fused), length, num_heads, head_dim)


@_with_jax_merge
def split_heads(fused: Tensor, length: int, num_heads: int, head_dim: int) -> tuple[Tensor, ...]:
    """Split (batch, length, 3 hidden) into query, key and value, each (batch, heads, length, head_dim).

    The last axis of `fused` is ordered (heads, 3, head_dim).
    """
    if keras.backend.backend() == "torch":
        return fused.reshape(-1, length, num_heads, 3, head_dim).permute(3, 0, 2, 1, 4).unbind()
    # One transpose, then contiguous parts: TensorFlow pads the gradient of a slice with zeros.
    fused = ops.reshape(fused, (-1, length, num_heads, 3, head_dim))
    return tuple(ops.unstack(ops.transpose(fused, (3, 0, 2, 1, 4))))


def merge_heads(context: Tensor) -> Tensor:
    """Return (batch, length, hidden) from the outputs of all heads, (batch, heads, length, head_dim)."""
    batch, heads, length, width = ops.shape(context)
    if keras.backend.backend() == "torch":
        return context.transpose(1, 2).reshape(batch, length, heads * width)
    return ops.reshape(ops.transpose(context, (0, 2, 1, 3)), (-1, length, heads * width))


def one_hot(ids: Tensor, classes: int, dtype: str) -> Tensor:
    """Return one-hot vectors, (..., classes); PyTorch's own function looks at the ids, for which a device is waited."""
    if keras.backend.backend() != "torch":
        return ops.one_hot(ids, classes, dtype=dtype)
    return ops.cast(ids[..., None] == ops.arange(classes, dtype=ids.dtype), dtype)


def minimum_by_group(values: Tensor, groups: Tensor) -> Tensor:
    """Return the smallest value of each group of a row, int32, (batch, length); of a group without values, any number.

    On PyTorch, Keras' own function copies a count from the device, and computes in float32.

    Args:
        values: int32, (batch, length).
        groups: int32, the same shape. From 0 to below the length.
    """
    if keras.backend.backend() == "torch":
        return values.scatter_reduce(1, groups.long(), values, "amin", include_self=False)
    batch, length = ops.shape(values)
    rows = ops.expand_dims(ops.arange(batch, dtype="int32") * length, 1)
    flat = (ops.reshape(each, (-1,)) for each in (values, groups + rows))
    return ops.reshape(ops.segment_min(*flat, batch * length), (batch, length))
