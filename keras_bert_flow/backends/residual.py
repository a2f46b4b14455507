"""Functions between the products of a block, on JAX where there is cuDNN: they keep only their inputs for the gradient.

Otherwise a half-precision step keeps for the backward pass what it computed in float32, which a GPU writes and reads
once more. Values and gradients are those of the plain functions, but for the order of float32 sums.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.attention import HALF, has_cudnn
from keras_bert_flow.backends.fused import drop_values
from keras_bert_flow.backends.values import Tensor


def is_for_gpu(tensor: Tensor) -> bool:
    """Return whether a program on JAX may be for a GPU, and a tensor is of half precision."""
    is_half = keras.backend.standardize_dtype(tensor.dtype) in HALF
    return keras.backend.backend() == "jax" and is_half and has_cudnn()


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
        return layer_norm(residual + (update if dropout is None else drop_values(update, *dropout)))
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

    def drop(values: Tensor, seed: Tensor, dropped: int) -> Tensor:
        return drop_values(values, seed, dropped) if dropped else values

    def remember(
        residual: Tensor, update: Tensor, gamma: Tensor, beta: Tensor, seed: Tensor, dropped: int, epsilon: float
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        total = residual + drop(update, seed, dropped)
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
        return of_total, drop(of_total, seed, dropped), *of_scales, None

    norm.defvjp(remember, differentiate)
    return norm
