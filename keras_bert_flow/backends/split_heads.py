"""Split a fused query-key-value projection into attention heads."""

import keras
from keras import ops


def _split(fused, length, num_heads, head_dim):
    # One transpose, then contiguous parts: TensorFlow pads the gradient of a slice with zeros.
    fused = ops.reshape(fused, (-1, length, num_heads, 3, head_dim))
    return tuple(ops.unstack(ops.transpose(fused, (3, 0, 2, 1, 4))))


def _make_split():
    """Return the split function; on JAX with a custom gradient, since JAX also pads that of a slice with zeros."""
    if keras.backend.backend() != "jax":
        return _split
    import jax

    split = jax.custom_vjp(_split, nondiff_argnums=(1, 2, 3))

    def remember(fused, *sizes):
        return split(fused, *sizes), None

    def differentiate(length, num_heads, head_dim, _, gradients):
        parts = [jax.numpy.swapaxes(gradient, 1, 2) for gradient in gradients]  # (batch, length, heads, head_dim)
        return (jax.numpy.stack(parts, axis=3).reshape(-1, length, 3 * num_heads * head_dim),)

    split.defvjp(remember, differentiate)
    return lambda fused, *sizes: split(ops.convert_to_tensor(fused), *sizes)


_split_heads = _make_split()


def split_heads(fused, length, num_heads, head_dim):
    """Split (batch, length, 3 hidden) into query, key and value, each (batch, heads, length, head_dim).

    The last axis of `fused` is ordered (heads, 3, head_dim).
    """
    return _split_heads(fused, length, num_heads, head_dim)
