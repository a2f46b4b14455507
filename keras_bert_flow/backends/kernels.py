"""Kernels of an encoder block by device: attention, and what lies between the products of a block.

`attend` chooses for the device that a step is compiled for, which need not be one of this machine: the dense
computation, or a fused one that never writes the scores to memory. A fused kernel does not drop probabilities but keys:
for each row and head, dropout takes a key from all queries at once. A query then keeps each of its keys with the same
probability as before, independently of its other keys, so expectation and variance are those of dropped probabilities;
only the queries of a row drop the same keys. Dropping probabilities within cuDNN takes a seed that is a constant of the
program, the same in each step; splash attention drops none.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from typing import Any, Protocol

import keras
import numpy as np
from keras import ops

from keras_bert_flow.backends.fused import drop_values
from keras_bert_flow.backends.values import Tensor, has_packed_rows, value_of
from keras_bert_flow.backends.windows import is_windowed

HALF = ("bfloat16", "float16")
LEAST_HALF = -30000.0  # far below any score, and a number of float16
_logger = logging.getLogger(__name__)


class Pattern(Protocol):
    """Which keys of its text a query may attend to; see `layers.patterns`."""

    is_full: bool
    counts_from_text: bool

    def allows(self, query: Any, key: Any) -> Any: ...


def attend(
    fused: Tensor,
    bias: Tensor,
    padding_mask: Tensor,
    pattern: Pattern,
    num_heads: int,
    dense: Callable[..., Tensor],
    dropout: tuple[Tensor, int] | None,
) -> Tensor:
    """Return the attention output, (batch, length, hidden), by the kernel for the device.

    The log names a fused kernel once; without a line in it, attention is dense.

    Args:
        fused: float, (batch, length, 3 hidden). Query, key and value; the last axis is ordered (heads, 3, head_dim).
        bias: float32, (batch, 1, query or 1, key). What is added to the scores: `make_bias` of the next two, which in
            blocks has another shape; only `dense` and splash attention, which makes its own, compute in blocks.
        padding_mask: int, (batch, length). The number of each token's text in its row, 0 for padding.
        pattern: which keys of its text a query may attend to.
        dense: computes the same from `fused`, `bias` and the seed of dropout, on any device.
        dropout: the last two arguments of `drop_values`; None for none.
    """
    seed, dropped = dropout or (None, 0)
    compute = partial(_attend_fused, num_heads=num_heads, dropped=dropped)
    if keras.backend.backend() == "torch" and fused.device.type == "cuda" and not is_windowed(bias):
        _name_kernel("scaled_dot_product_attention of PyTorch")
        return compute(fused, bias, seed, kernel=_attend_by_torch)
    if keras.backend.backend() != "jax":
        return dense(fused, bias, seed)
    kernels: dict[str, Callable[..., Tensor]] = {}
    if is_for_gpu(fused) and not is_windowed(bias):
        kernels["cuda"] = partial(compute, kernel=_attend_by_cudnn)
    elif is_for_splash(fused, padding_mask, pattern):
        by_splash = partial(attend_by_splash, padding_mask=padding_mask, pattern=pattern, mesh=find_mesh())
        kernels["tpu"] = partial(compute, kernel=by_splash)
    if not kernels:
        return dense(fused, bias, seed)
    import jax

    if jax.default_backend() != "cpu":
        _name_kernel("flash attention of cuDNN" if "cuda" in kernels else "splash attention")
    if seed is None:
        seed = jax.numpy.zeros(2, "uint32")  # unused; all arguments of both are tensors
    return jax.lax.platform_dependent(fused, bias, seed, **kernels, default=dense)


@cache
def _name_kernel(name: str) -> None:
    _logger.info("Attention: %s.", name)


def is_for_gpu(tensor: Tensor) -> bool:
    """Return whether a program on JAX may be for a GPU, and a tensor is of half precision."""
    is_half = keras.backend.standardize_dtype(tensor.dtype) in HALF
    return keras.backend.backend() == "jax" and is_half and has_cudnn() and not is_for_tpu()


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


# Splash attention, of JAX for TPUs.

LEAST_LENGTH = 256  # for shorter rows the kernel moves more than the dense computation: docs/performance.md
MOST_BLOCK = 512
_compiled_for: ContextVar[Any] = ContextVar("compiled_for", default=None)


@contextmanager
def compiled_for(mesh: Any) -> Iterator[None]:
    """Trace programs for the devices of a mesh, instead of for those of this machine.

    Args:
        mesh: `jax.sharding.Mesh`. Its first axis is that of the batch, the second, if there is one, that of the heads.
    """
    token = _compiled_for.set(mesh)
    try:
        yield
    finally:
        _compiled_for.reset(token)


def find_mesh() -> Any:
    """Return the mesh of devices that a program of JAX is traced for; None for one device of this machine."""
    if (mesh := _compiled_for.get()) is not None:
        return mesh
    strategy = keras.distribution.distribution()
    return None if strategy is None else strategy.get_data_layout((None,)).backend_layout.mesh


def is_for_tpu() -> bool:
    """Return whether a program of JAX is for TPUs."""
    import jax

    mesh = find_mesh()
    return (jax.default_backend() if mesh is None else mesh.devices.flat[0].platform) == "tpu"


def is_for_splash(fused: Tensor, padding_mask: Tensor, pattern: Pattern) -> bool:
    """Return whether a program is for TPUs, and its attention one that splash attention computes in less time.

    The mask of the kernel is part of the program, so a pattern that counts from each text needs rows of one text.
    """
    if not is_for_tpu() or keras.backend.standardize_dtype(fused.dtype) != "bfloat16":
        return False
    mesh, (batch, length, _) = find_mesh(), fused.shape
    is_static = not pattern.counts_from_text or has_packed_rows(padding_mask) is False
    is_even = mesh is None or batch % mesh.devices.shape[0] == 0
    return is_static and is_even and length >= LEAST_LENGTH and find_block(length) is not None


def find_block(length: int) -> int | None:
    """Return the largest block of the kernel that divides a length; None if there is none."""
    return next((size for size in (MOST_BLOCK, 256, 128) if length % size == 0), None)


def attend_by_splash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor,
    padding_mask: Tensor,
    pattern: Pattern,
    mesh: Any = None,
    is_interpreted: bool = False,
) -> Tensor:
    """Return (batch, length, heads, head_dim) by splash attention, which skips blocks of keys that the pattern masks.

    A padding token attends to padding alone. XLA does not divide the kernel over devices, so each computes its rows,
    and its heads where several share a copy of the model.

    Args:
        query, key, value: float, (batch, length, heads, head_dim).
        bias: not used: the kernel makes its own.
        is_interpreted: whether to compute it on any device, slowly.
    """
    import jax
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel, splash_attention_mask

    length, width = query.shape[1], query.shape[3]
    block: Any = find_block(length)
    names = ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute")
    blocks = {f"block_{name}": block for name in names} | {"use_fused_bwd_kernel": True}
    places = np.arange(length)
    allowed = (
        splash_attention_mask.FullMask((length, length))
        if pattern.is_full
        else splash_attention_mask.NumpyMask(np.asarray(pattern.allows(places[:, None], places)))
    )

    def compute(query: Tensor, key: Tensor, value: Tensor, texts: Tensor) -> Tensor:
        kernel = splash_attention_kernel.make_splash_mha(
            splash_attention_mask.MultiHeadMask([allowed] * query.shape[1]),
            block_sizes=splash_attention_kernel.BlockSizes(**blocks),
            head_shards=1,
            q_seq_shards=1,
            interpret=is_interpreted,
        )
        return jax.vmap(kernel)(query * width**-0.5, key, value, splash_attention_kernel.SegmentIds(texts, texts))

    if mesh is not None:
        rows = jax.sharding.PartitionSpec(*mesh.axis_names)
        texts = jax.sharding.PartitionSpec(mesh.axis_names[0])
        specs = {"in_specs": (rows, rows, rows, texts), "out_specs": rows, "check_vma": False}
        compute = jax.shard_map(compute, mesh=mesh, **specs)
    query, key, value = (ops.swapaxes(part, 1, 2) for part in (query, key, value))  # (batch, heads, length, head_dim)
    return ops.swapaxes(compute(query, key, value, ops.cast(padding_mask, "int32")), 1, 2)


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
    if keras.backend.backend() != "torch" or not layer.built or layer._forward_hooks or layer._forward_pre_hooks:
        return layer
    policy = layer.dtype_policy  # of this class, it is none of quantized layers
    is_plain = type(policy) is keras.DTypePolicy and policy.compute_dtype == policy.variable_dtype
    return layer.call if is_plain else layer


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
    if not is_for_gpu(update) or layer_norm.beta is None:
        total, normalise = (
            residual + (update if dropout is None else drop_values(update, *dropout)),
            call_of(layer_norm),
        )
        if normalise is layer_norm or keras.backend.backend() != "torch":
            return normalise(total)
        return _normalise_in_torch(total, layer_norm)
    import jax

    seed, dropped = dropout or (jax.numpy.zeros(2, "uint32"), 0)
    scales = (ops.cast(value, "float32") for value in (layer_norm.gamma, layer_norm.beta))
    return _make_norm()(residual, update, *scales, seed, dropped, layer_norm.epsilon)


def _normalise_in_torch(inputs: Tensor, layer_norm: keras.layers.LayerNormalization) -> Tensor:
    """Return the layer norm of (..., units) as `call` does, which looks at types and shapes for as long."""
    import torch

    scales = [None if scale is None else value_of(scale) for scale in (layer_norm.gamma, layer_norm.beta)]
    found: Any = torch.nn.functional.layer_norm(inputs, inputs.shape[-1:], *scales, layer_norm.epsilon)
    return found


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
