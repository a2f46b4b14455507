"""Positions within attention: rotation, slopes over distances, and scores of relative positions.

All depend on the distance of two tokens alone, which in a packed row is the same as in the text by itself.
"""

from functools import cache

import numpy as np
from keras import ops

from keras_bert_flow.backends.products import matmul
from keras_bert_flow.backends.rotation import rotate
from keras_bert_flow.backends.values import Tensor
from keras_bert_flow.layers.patterns import Disentangled


def rotate_fused(fused: Tensor, num_heads: int, theta: float) -> Tensor:
    """Rotate the queries and keys of a fused projection by their place in the row.

    The product of a query and a key then depends on the distance of their places, so that any kernel of attention takes
    them. The angle of the pair (i, i + half) of the values of a head is place · theta^(-i / half); it is computed in
    float32.

    Args:
        fused: float, (batch, length, 3 hidden). The last axis is ordered (heads, 3, head_dim).
        theta: base of the wavelengths, above 0.
    Returns:
        The shape and dtype of `fused`; its values as they are.
    Raises:
        ValueError: `head_dim` is odd.
    Source: Su et al. 2021, section 3.2.2; arXiv:2104.09864. Halves as in EleutherAI/gpt-neox, `rotate_half`.
    """
    length, width = ops.shape(fused)[1], fused.shape[2] // (3 * num_heads)
    if width % 2:
        raise ValueError(f"Rotated heads must have an even width. Received: head_dim={width}. Change `num_heads`.")
    half = width // 2
    frequencies = np.zeros((3, 2, half), "float32")  # 0 for the values
    frequencies[:2] = theta ** (-np.arange(half) / half)
    signs = np.broadcast_to(np.array([[-1.0], [1.0]], "float32"), frequencies.shape)
    places = ops.reshape(ops.arange(length, dtype="float32"), (length, 1, 1))
    angles = places * ops.convert_to_tensor(frequencies.reshape(-1))  # (length, 1, 3 head_dim)
    cosines, sines = ops.cos(angles), ops.sin(angles) * ops.convert_to_tensor(signs.reshape(-1))
    return rotate(fused, cosines, sines, num_heads)


def alibi_bias(length: Tensor | int, num_heads: int) -> Tensor:
    """Return what ALiBi adds to the scores, float32, (1, heads, query, key): -slope · distance.

    For a power of two of heads, their slopes are 2^(-8 / heads), its square, and so on. Otherwise: those of the next
    lower power of two, then every second one of twice as many heads.

    Source: Press et al. 2022, section 3; ofirpress/attention_with_linear_biases, `get_slopes`.
    """
    power = 1 << (num_heads.bit_length() - 1)
    slopes = 2.0 ** (-8.0 * np.arange(1, power + 1) / power)
    between = 2.0 ** (-4.0 * np.arange(1, 2 * power + 1, 2) / power)
    slopes = np.concatenate([slopes, between[: num_heads - power]]).astype("float32")
    places = ops.arange(length, dtype="float32")
    distances = ops.abs(ops.expand_dims(places, 1) - places)
    return -ops.reshape(ops.convert_to_tensor(slopes), (1, num_heads, 1, 1)) * distances


def make_sinusoids(length: Tensor | int, width: int) -> Tensor:
    """Return the sinusoids of the distances length, length - 1, …, 1 - length, float32, (2 length, width).

    Source: Vaswani et al. 2017, section 3.5, with the sines before the cosines as in Transformer-XL and XLNet.
    """
    distances = ops.cast(length, "float32") - ops.arange(2 * length, dtype="float32")
    frequencies = ops.convert_to_tensor((10000.0 ** (-np.arange(0, width, 2) / width)).astype("float32"))
    angles = ops.expand_dims(distances, 1) * frequencies
    return ops.concatenate([ops.sin(angles), ops.cos(angles)], axis=1)


def shift_distances(scores: Tensor) -> Tensor:
    """Take from the scores of all distances those of each query and key.

    Args:
        scores: float, (batch, heads, query, 2 length). Of the distances of `make_sinusoids`.
    Returns:
        float, (batch, heads, query, key). That of the distance query - key.
    Source: Dai et al. 2019, appendix B: shifting each row by one more is a reshape.
    """
    batch, heads, length, _ = ops.shape(scores)
    flat = ops.reshape(scores, (batch, heads, -1))[:, :, length:]
    return ops.reshape(flat, (batch, heads, length, -1))[..., :length]


@cache
def find_buckets(num_buckets: int, max_distance: int) -> np.ndarray:
    """Return the row of the table of relative positions for the distances -max_distance to max_distance, int32.

    Source: microsoft/DeBERTa, `make_log_bucket_position`. Floor and ceiling decide between neighbouring buckets, so the
    logarithms are computed in float64 with NumPy, on every backend.
    """
    distances = np.arange(-max_distance, max_distance + 1)
    middle = num_buckets // 2
    far = np.maximum(np.abs(distances), middle)
    steps = np.ceil(np.log(far / middle) / np.log((max_distance - 1) / middle) * (middle - 1))
    buckets = np.where(np.abs(distances) < middle, distances, np.sign(distances) * (steps + middle))
    return np.clip(buckets + num_buckets, 0, 2 * num_buckets - 1).astype("int32")


@cache
def find_rows(num_rows: int, max_distance: int) -> np.ndarray:
    """Return what `find_buckets` does where each distance has a row of its own, up to `num_rows`."""
    return np.clip(np.arange(-max_distance, max_distance + 1) + num_rows, 0, 2 * num_rows - 1).astype("int32")


def score_disentangled(query: Tensor, key: Tensor, table: tuple[Tensor, ...], kind: Disentangled) -> Tensor:
    """Return what relative positions add to the scores: content to position, and position to content.

    Both terms take the row of query - key. The paper's section 3.2 has key - query in the second; its code does not.

    Args:
        query, key: float, (batch, heads, length, head_dim).
        table: queries and keys of the table of relative positions, float, (1, heads, 2 num_buckets, head_dim).
    Returns:
        float, (batch, heads, query, key).
    """
    length = ops.shape(query)[2]
    distances = length - ops.arange(2 * length, dtype="int32")  # in the order of `shift_distances`
    added = []
    if "c2p" in kind.terms:
        added.append(_score_distances(query, table[1], distances, kind))
    if "p2c" in kind.terms:  # of each key in a row, so the sign of its distance is that of the query from it
        added.append(ops.swapaxes(_score_distances(key, table[0], -distances, kind), -1, -2))
    return added[0] if len(added) == 1 else added[0] + added[1]


def _score_distances(vectors: Tensor, table: Tensor, distances: Tensor, kind: Disentangled) -> Tensor:
    """Return the product of each vector with the row of its distance from each place, (batch, heads, length, length).

    There are twice as many distances as places, so no index or row is made for each pair of places.
    """
    most, (_, heads, count, width) = kind.max_distance, table.shape
    buckets = find_buckets(kind.num_buckets, most) if kind.is_logarithmic else find_rows(kind.num_buckets, most)
    # Rows of matrices alone: what Keras takes from other tensors on PyTorch is not exported to ONNX for any length.
    rows = ops.take(ops.convert_to_tensor(buckets[:, None]), ops.clip(distances, -most, most) + most, axis=0)[:, 0]
    flat = ops.reshape(ops.transpose(table[0], (1, 0, 2)), (count, heads * width))
    chosen = ops.reshape(ops.take(flat, rows, axis=0), (1, -1, heads, width))  # (1, 2 length, heads, head_dim)
    return shift_distances(matmul(vectors, ops.transpose(chosen, (0, 2, 3, 1))))
