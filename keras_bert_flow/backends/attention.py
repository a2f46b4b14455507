"""Attention kernels by device: the dense computation, and fused ones that never write the scores to memory.

`attend` chooses for the device that a step is compiled for, which need not be one of this machine. A fused kernel does
not drop probabilities but keys: for each row and head, dropout takes a key from all queries at once. A query then keeps
each of its keys with the same probability as before, independently of its other keys, so expectation and variance are
those of dropped probabilities; only the queries of a row drop the same keys. Dropping probabilities within cuDNN takes
a seed that is a constant of the program, the same in each step.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.fused import drop_values
from keras_bert_flow.backends.values import Tensor

HALF = ("bfloat16", "float16")
LEAST_HALF = -30000.0  # far below any score, and a number of float16


def attend(
    fused: Tensor, bias: Tensor, num_heads: int, dense: Callable[..., Tensor], dropout: tuple[Tensor, int] | None
) -> Tensor:
    """Return the attention output, (batch, length, hidden), by the kernel for the device.

    Args:
        fused: float, (batch, length, 3 hidden). Query, key and value; the last axis is ordered (heads, 3, head_dim).
        bias: float32, (batch, 1, query or 1, key). What is added to the scores.
        dense: computes the same from `fused`, `bias` and the seed of dropout, on any device.
        dropout: the last two arguments of `drop_values`; None for none.
    """
    seed, dropped = dropout or (None, 0)
    kernel = find_kernel(fused)
    if kernel is None:
        return dense(fused, bias, seed)
    compute = partial(_attend_fused, num_heads=num_heads, dropped=dropped, kernel=kernel)
    if keras.backend.backend() != "jax":
        return compute(fused, bias, seed)
    import jax

    if seed is None:
        seed = jax.numpy.zeros(2, "uint32")  # unused; all arguments of both are tensors
    return jax.lax.platform_dependent(fused, bias, seed, cuda=compute, default=dense)


def find_kernel(tensor: Tensor) -> Callable[..., Tensor] | None:
    """Return a fused kernel for a tensor where there is one; on JAX it is only for the programs of a GPU."""
    if keras.backend.backend() == "jax":
        is_half = keras.backend.standardize_dtype(tensor.dtype) in HALF
        return _attend_by_cudnn if is_half and has_cudnn() else None
    if keras.backend.backend() == "torch":
        return _attend_by_torch if tensor.device.type == "cuda" else None
    return None


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

    def remember(fused: Tensor, is_kept: Tensor | None, num_heads: int) -> tuple[tuple[Tensor, ...], Tensor | None]:
        return split(fused, is_kept, num_heads), is_kept

    def differentiate(
        num_heads: int, is_kept: Tensor | None, gradients: tuple[Tensor, ...]
    ) -> tuple[Tensor, Tensor | None]:
        query, key, value = gradients
        stacked = jax.numpy.stack([query, key, _keep(value, is_kept)], axis=3)  # (batch, length, heads, 3, head_dim)
        return stacked.reshape(*stacked.shape[:2], -1), None if is_kept is None else jax.numpy.zeros_like(is_kept)

    split.defvjp(remember, differentiate)
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
