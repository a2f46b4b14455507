"""Kernels of an encoder block by device: attention, and what lies between the products of a block.

`attend` chooses for the device that a step is compiled for, which need not be one of this machine: the dense
computation, or a fused one that never writes the scores to memory. A fused kernel does not drop probabilities but keys:
for each row and head, dropout takes a key from all queries at once. A query then keeps each of its keys with the same
probability as before, independently of its other keys, so expectation and variance are those of dropped probabilities;
only the queries of a row drop the same keys. Dropping probabilities within cuDNN takes a seed that is a constant of the
program, the same in each step.
"""

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.fused import drop_values
from keras_bert_flow.backends.values import Tensor

HALF = ("bfloat16", "float16")
LEAST_HALF = -30000.0  # far below any score, and a number of float16
_logger = logging.getLogger(__name__)


def attend(
    fused: Tensor, bias: Tensor, num_heads: int, dense: Callable[..., Tensor], dropout: tuple[Tensor, int] | None
) -> Tensor:
    """Return the attention output, (batch, length, hidden), by the kernel for the device.

    The log names a fused kernel once; without a line in it, attention is dense.

    Args:
        fused: float, (batch, length, 3 hidden). Query, key and value; the last axis is ordered (heads, 3, head_dim).
        bias: float32, (batch, 1, query or 1, key). What is added to the scores.
        dense: computes the same from `fused`, `bias` and the seed of dropout, on any device.
        dropout: the last two arguments of `drop_values`; None for none.
    """
    seed, dropped = dropout or (None, 0)
    compute = partial(_attend_fused, num_heads=num_heads, dropped=dropped)
    if keras.backend.backend() == "torch" and fused.device.type == "cuda":
        _name_kernel("scaled_dot_product_attention of PyTorch")
        return compute(fused, bias, seed, kernel=_attend_by_torch)
    if not is_for_gpu(fused):
        return dense(fused, bias, seed)
    import jax

    compute = partial(compute, kernel=_attend_by_cudnn)
    if jax.default_backend() == "gpu":
        _name_kernel("flash attention of cuDNN")
    if seed is None:
        seed = jax.numpy.zeros(2, "uint32")  # unused; all arguments of both are tensors
    return jax.lax.platform_dependent(fused, bias, seed, cuda=compute, default=dense)


@cache
def _name_kernel(name: str) -> None:
    _logger.info("Attention: %s.", name)


def is_for_gpu(tensor: Tensor) -> bool:
    """Return whether a program on JAX may be for a GPU, and a tensor is of half precision."""
    is_half = keras.backend.standardize_dtype(tensor.dtype) in HALF
    return keras.backend.backend() == "jax" and is_half and has_cudnn()


def _attend_fused(
    fused: Tensor, bias: Tensor, seed: Tensor | None, num_heads: int, dropped: int, kernel: Callable[..., Tensor]
) -> Tensor:
    batch, length, width = ops.shape(fused)
    is_kept = None
    if dropped:
        is_kept = drop_values(ops.ones((batch, length, num_heads, 1), dtype="float32"), seed, dropped)
    # The bias of padding is beyond the numbers of float16, and a row of nothing but infinities has no softmax.
    bias = ops.cast(ops.maximum(bias, LEAST_HALF), fused.dtype)
    context = kernel(*_split_parts(fused, is_kept, num_heads), bias)
    return ops.reshape(context, (batch, length, width // 3))


def _with_jax_stack(plain: Callable[..., tuple[Tensor, ...]]) -> Callable[..., tuple[Tensor, ...]]:
    """Give `_split_parts` its gradient on JAX, which adds up a padded array for each part."""
    if keras.backend.backend() != "jax":
        return plain
    import jax

    split = jax.custom_vjp(plain, nondiff_argnums=(2,))

    def differentiate(
        num_heads: int, is_kept: Tensor | None, gradients: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor | None]:
        query, key, value = gradients
        stacked = jax.numpy.stack([query, key, _keep(value, is_kept)], axis=3)  # (batch, length, heads, 3, head_dim)
        return stacked.reshape(*stacked.shape[:2], -1), None if is_kept is None else jax.numpy.zeros_like(is_kept)

    split.defvjp(lambda fused, is_kept, num_heads: (split(fused, is_kept, num_heads), is_kept), differentiate)
    return split


@_with_jax_stack
def _split_parts(fused: Tensor, is_kept: Tensor | None, num_heads: int) -> tuple[Tensor, ...]:
    """Return query, key and value, each (batch, length, heads, head_dim), the value times `is_kept`."""
    batch, length, width = ops.shape(fused)
    split = ops.reshape(fused, (batch, length, num_heads, 3, width // (3 * num_heads)))
    query, key, value = (split[:, :, :, part] for part in range(3))
    return query, key, _keep(value, is_kept)


def _keep(value: Tensor, is_kept: Tensor | None) -> Tensor:
    """Multiply in float32: bfloat16 would round the factor that makes up for what is dropped."""
    return value if is_kept is None else ops.cast(ops.cast(value, "float32") * is_kept, value.dtype)


def _attend_by_cudnn(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, implementation: Any = "cudnn") -> Tensor:
    """Return (batch, length, heads, head_dim) by cuDNN's flash attention, or by `xla` for a comparison elsewhere.

    Source: Dao et al. 2022, arXiv:2205.14135.
    """
    import jax

    batch, length, _, _ = query.shape
    bias = jax.numpy.broadcast_to(bias, (batch, 1, length, length))
    return jax.nn.dot_product_attention(query, key, value, bias=bias, implementation=implementation)


@cache
def has_cudnn() -> bool:
    """Return whether JAX can compile for cuDNN, which it says when it traces a call."""
    import jax

    shape = jax.ShapeDtypeStruct((1, 64, 1, 64), "bfloat16")
    try:
        jax.eval_shape(partial(jax.nn.dot_product_attention, implementation="cudnn"), shape, shape, shape)
    except (RuntimeError, ValueError, NotImplementedError):
        return False
    return True


def _attend_by_torch(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
    """Return (batch, length, heads, head_dim) by the kernel that PyTorch chooses for the device."""
    import torch

    query, key, value = (part.transpose(1, 2) for part in (query, key, value))  # (batch, heads, length, head_dim)
    found: Any = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=bias)
    return found.transpose(1, 2)


def call_of(layer: keras.layers.Layer) -> Callable[..., Tensor]:
    """Return what a layer computes within the call of another: on PyTorch in float32 its `call`.

    Keras looks at all arguments and types of a call, which takes PyTorch as long as the operations of a small layer. A
    layer that casts its weights, is quantized, or has hooks of PyTorch is called as ever.
    """
    if keras.backend.backend() != "torch" or not layer.built or layer.quantization_mode is not None:
        return layer
    is_plain = layer.compute_dtype == layer.variable_dtype and not layer._forward_hooks
    return layer.call if is_plain and not layer._forward_pre_hooks else layer


# Functions between the products of a block, on JAX where there is cuDNN: they keep only their inputs for the gradient.
#
# Otherwise a half-precision step keeps for the backward pass what it computed in float32, which a GPU writes and reads
# once more. Values and gradients are those of the plain functions, but for the order of float32 sums.


def add_and_norm(
    residual: Tensor,
    update: Tensor,
    layer_norm: keras.layers.LayerNormalization,
    dropout: tuple[Tensor, int] | None,
) -> Tensor:
    """Return the layer norm of a residual and an update with dropout, (..., units).

    Args:
        dropout: the last two arguments of `drop_values`; None for none.
    """
    if not is_for_gpu(update):
        return call_of(layer_norm)(residual + (update if dropout is None else drop_values(update, *dropout)))
    import jax

    seed, dropped = dropout or (jax.numpy.zeros(2, "uint32"), 0)
    scales = (ops.cast(value, "float32") for value in (layer_norm.gamma, layer_norm.beta))
    return _make_norm()(residual, update, *scales, seed, dropped, layer_norm.epsilon)


def keep_inputs(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Return an element-wise function that keeps its inputs alone for the gradient if `is_for_gpu`."""
    if keras.backend.backend() != "jax":
        return function
    import jax

    def differentiate(inputs: Tensor, gradient: Tensor) -> tuple[Tensor]:
        # Without the barrier XLA finds what is computed again in the forward pass, and keeps it.
        inputs, gradient = jax.lax.optimization_barrier((inputs, gradient))
        return jax.vjp(function, inputs)[1](gradient)

    keeping = jax.custom_vjp(function)
    keeping.defvjp(lambda inputs: (function(inputs), inputs), differentiate)

    return lambda inputs: (keeping if is_for_gpu(inputs) else function)(inputs)


@cache
def _make_norm() -> Any:
    """Return the fused form of `add_and_norm` with its gradient, on JAX."""
    import jax
    import jax.numpy as jnp

    @partial(jax.custom_vjp, nondiff_argnums=(5, 6))
    def norm(
        residual: Tensor, update: Tensor, gamma: Tensor, beta: Tensor, seed: Tensor, dropped: int, epsilon: float
    ) -> Tensor:
        return remember(residual, update, gamma, beta, seed, dropped, epsilon)[0]

    def remember(
        residual: Tensor, update: Tensor, gamma: Tensor, beta: Tensor, seed: Tensor, dropped: int, epsilon: float
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        total = residual + (drop_values(update, seed, dropped) if dropped else update)
        exact = total.astype("float32")
        mean = exact.mean(-1, keepdims=True)
        scale = jax.lax.rsqrt(((exact - mean) ** 2).mean(-1, keepdims=True) + epsilon)
        normal = (exact - mean) * scale * gamma + beta
        return normal.astype(total.dtype), (total, mean, scale, gamma, seed)

    def differentiate(
        dropped: int, epsilon: float, kept: tuple[Tensor, ...], gradient: Tensor
    ) -> tuple[Tensor | None, ...]:
        (total, mean, scale, gamma, seed), gradient = jax.lax.optimization_barrier((kept, gradient))
        normal, gradient = (total.astype("float32") - mean) * scale, gradient.astype("float32")
        of_normal, axes = gradient * gamma, tuple(range(gradient.ndim - 1))
        means = of_normal.mean(-1, keepdims=True) + normal * (of_normal * normal).mean(-1, keepdims=True)
        of_total = ((of_normal - means) * scale).astype(total.dtype)
        of_scales = jnp.sum(gradient * normal, axes), jnp.sum(gradient, axes)
        of_update = drop_values(of_total, seed, dropped) if dropped else of_total
        return of_total, of_update, *of_scales, None

    norm.defvjp(remember, differentiate)
    return norm
