"""Multi-head self-attention: its fused projection, how its scores depend on positions, and the layer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bert_flow.backends.fused import drop_values, fuse
from keras_bert_flow.backends.kernels import attend, call_of
from keras_bert_flow.backends.products import matmul, merge_heads, split_heads
from keras_bert_flow.backends.unpadding import map_rows
from keras_bert_flow.backends.values import Shape, Tensor
from keras_bert_flow.layers.dense import Dense, Dropout, ShapedLayer, rematerialise, truncated_normal
from keras_bert_flow.layers.masks import MASKED_SCORE, attention_bias, is_unpadded
from keras_bert_flow.layers.patterns import (
    FULL,
    LEARNED,
    PATTERNS,
    POSITIONS,
    Alibi,
    Disentangled,
    Full,
    Learned,
    Rotary,
    TransformerXL,
    describe_kind,
    make_kind,
)
from keras_bert_flow.layers.shape import EncoderShape

# Fused query-key-value projection, with separate LoRA matrices for each of the three.

PARTS = ("query", "key", "value")


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class QueryKeyValue(Dense):
    """Fused query-key-value projection: a dense layer whose outputs are ordered (heads, 3, head_dim).

    With this order, sharding the last axis of the kernel evenly gives each device whole heads.

    Args:
        num_heads: number of attention heads.
    Attributes:
        lora_matrices: part → its two LoRA matrices; see `enable_lora`.
    """

    lora_enabled: bool  # defined by Keras' Dense

    def __init__(self, units: int, num_heads: int, **kwargs: Any) -> None:
        super().__init__(units, **kwargs)
        self.num_heads = num_heads

    def enable_lora(
        self,
        rank: int,
        lora_alpha: float | None = None,
        a_initializer: str | Callable = "he_uniform",
        b_initializer: str | Callable = "zeros",
        parts: Sequence[str] = PARTS,
    ) -> None:
        """Freeze the kernel and add LoRA to it, as `keras.layers.Dense.enable_lora` does.

        Args:
            parts: which of `PARTS` to adapt, each with its own matrices, (inputs, rank) and (rank, units / 3).
        Raises:
            ValueError: the layer is not built, or LoRA is already enabled.
        """
        if not self.built or self.lora_enabled:
            raise ValueError(
                "LoRA must be enabled once, on a layer that is built. Received: "
                f"{self.name}, built={self.built}, lora_enabled={self.lora_enabled}."
            )
        inputs, units = self._kernel.shape
        shapes = {"a": (inputs, rank), "b": (rank, units // len(PARTS))}
        initializers = {"a": a_initializer, "b": b_initializer}
        self._tracker.unlock()  # as in Keras' `enable_lora`; there is no public API
        self.lora_matrices = {
            part: tuple(
                self.add_weight(
                    name=f"lora_{part}_{letter}", shape=shape, initializer=initializers[letter], dtype="float32"
                )
                for letter, shape in shapes.items()
            )
            for part in PARTS
            if part in parts
        }
        self._kernel.trainable = False
        self._tracker.lock()
        self.lora_enabled = True
        self.lora_rank, self.lora_alpha = rank, rank if lora_alpha is None else lora_alpha

    # Keras adds the product of these two to the kernel when it returns, quantises or saves the kernel.

    @property
    def lora_kernel_a(self) -> Tensor:
        """The first LoRA matrices of all parts side by side, (inputs, parts · rank)."""
        return ops.concatenate([first for first, _ in self.lora_matrices.values()], axis=1)

    @property
    def lora_kernel_b(self) -> Tensor:
        """The second LoRA matrices of all parts, stacked, (parts · rank, units); 0 in the columns of other parts."""
        spread = []
        for part, (_, second) in self.lora_matrices.items():
            place, rank = PARTS.index(part), second.shape[0]
            heads = ops.reshape(second, (rank, self.num_heads, 1, -1))  # (rank, heads, 1, head_dim)
            padded = ops.pad(heads, ((0, 0), (0, 0), (place, len(PARTS) - 1 - place), (0, 0)))
            spread.append(ops.reshape(padded, (rank, self.units)))
        return ops.concatenate(spread)

    def list_lora_matrices(self) -> dict[str, Tensor]:
        return {
            f"{part}_{letter}": matrix
            for part, pair in self.lora_matrices.items()
            for letter, matrix in zip("ab", pair, strict=True)
        }

    def describe_lora(self) -> dict[str, Any]:
        return super().describe_lora() | {"parts": list(self.lora_matrices)}

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"num_heads": self.num_heads}


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class QueryKeyAndValue(ShapedLayer):
    """Queries, keys and values as three dense layers, with the outputs of a `QueryKeyValue`.

    Call arguments:
        inputs: float, (..., any width). Of queries and keys.
        values: float, (..., any width).
    Returns:
        float, (..., 3 `attention_dim`), ordered (heads, 3, head_dim).
    """

    def __init__(self, shape: EncoderShape | Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(shape, **kwargs)
        self.query, self.key, self.value = (
            self.make_dense(self.shape.attention_dim, part, use_bias=self.shape.attention_bias) for part in PARTS
        )

    def build(self, inputs_shape: Shape, values_shape: Shape) -> None:
        for layer, shape in ((self.query, inputs_shape), (self.key, inputs_shape), (self.value, values_shape)):
            layer.build(shape)

    def call(self, inputs: Tensor, values: Tensor) -> Tensor:
        parts = (call_of(self.query)(inputs), call_of(self.key)(inputs), call_of(self.value)(values))
        leading = ops.shape(inputs)[:-1]
        heads = [ops.reshape(part, (*leading, self.shape.num_heads, 1, self.shape.head_dim)) for part in parts]
        return ops.reshape(ops.concatenate(heads, axis=-2), (*leading, 3 * self.shape.attention_dim))

    def compute_output_shape(self, inputs_shape: Shape, values_shape: Shape) -> Shape:
        return (*inputs_shape[:-1], 3 * self.shape.attention_dim)


# Positions within attention: rotation, slopes over distances, and scores of relative positions. All depend on the
# distance of two tokens alone, which in a packed row is the same as in the text by itself.


def rotate(vectors: Tensor, theta: float) -> Tensor:
    """Rotate queries or keys by their place in the row.

    The product of a query and a key then depends on the distance of their places. The angle of the pair (i, i + half)
    of the values of a head is place · theta^(-i / half); it is computed in float32.

    Args:
        vectors: float, (batch, heads, length, head_dim).
        theta: base of the wavelengths, above 0.
    Returns:
        The shape and dtype of the vectors.
    Raises:
        ValueError: `head_dim` is odd.
    Source: Su et al. 2021, section 3.2.2; arXiv:2104.09864. Halves as in EleutherAI/gpt-neox, `rotate_half`.
    """
    length, width = ops.shape(vectors)[2], vectors.shape[3]
    if width % 2:
        raise ValueError(f"Rotated heads must have an even width. Received: head_dim={width}. Change `num_heads`.")
    half = width // 2
    frequencies = ops.convert_to_tensor((theta ** (-np.arange(half) / half)).astype("float32"))
    angles = ops.expand_dims(ops.arange(length, dtype="float32"), 1) * frequencies  # (length, half)
    cosines, sines = ops.cos(angles), ops.sin(angles)
    first, second = ops.cast(vectors[..., :half], "float32"), ops.cast(vectors[..., half:], "float32")
    rotated = [first * cosines - second * sines, second * cosines + first * sines]
    return ops.cast(ops.concatenate(rotated, axis=-1), vectors.dtype)


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


def score_disentangled(query: Tensor, key: Tensor, table: tuple[Tensor, Tensor], kind: Disentangled) -> Tensor:
    """Return what relative positions add to the scores: content to position, and position to content.

    Both terms take the row of query - key. The paper's section 3.2 has key - query in the second; its code does not.

    Args:
        query, key: float, (batch, heads, length, head_dim).
        table: queries and keys of the table of relative positions, float, (1, heads, 2 num_buckets, head_dim).
    Returns:
        float, (batch, heads, query, key).
    """
    batch, heads, length, _ = ops.shape(query)
    places, most = ops.arange(length, dtype="int32"), kind.max_distance
    distances = ops.clip(ops.expand_dims(places, 1) - places, -most, most)
    rows = ops.take(ops.convert_to_tensor(find_buckets(kind.num_buckets, most)), distances + most)  # (query, key)
    by_query, by_key = (
        ops.take_along_axis(
            ops.matmul(vectors, ops.swapaxes(others, -1, -2)),  # (batch, heads, length, row)
            ops.broadcast_to(chosen, (batch, heads, length, length)),
            axis=-1,
        )
        for vectors, others, chosen in ((query, table[1], rows), (key, table[0], ops.transpose(rows)))
    )
    return by_query + ops.swapaxes(by_key, -1, -2)


# The softmax of the scores, and the layer.


def masked_softmax(scores: Tensor, bias: Tensor) -> Tensor:
    """Return the softmax of scores with a bias, computed in float32 and cast to the dtype of the scores.

    Args:
        scores: float, (batch, heads, query, key).
        bias: float32, or of the dtype of the scores, of a shape that broadcasts to theirs; see `attention_bias`.
    """
    if keras.backend.backend() == "torch" and scores.dtype == bias.dtype:  # float32
        return (scores + bias).softmax(-1)
    if keras.backend.standardize_dtype(scores.dtype) == "bfloat16":
        # Half the bytes of a float32 sum, and exact: a real key adds 0. float16 cannot represent the bias of padding.
        scores, bias = scores + ops.cast(bias, "bfloat16"), 0.0
        if keras.backend.backend() == "torch":
            return ops.softmax(scores, axis=-1)  # float32 internally, without the copies that casts would make
    elif keras.backend.standardize_dtype(bias.dtype) == "float16":  # cast by the call of a layer, padding to -infinity
        bias = ops.maximum(ops.cast(bias, "float32"), MASKED_SCORE)
    return ops.cast(ops.softmax(ops.cast(scores, "float32") + bias, axis=-1), scores.dtype)


@fuse
def softmax_and_drop(scores: Tensor, bias: Tensor, seed: Tensor, dropped: int) -> Tensor:
    """Apply `masked_softmax`, then dropout; the last two arguments are those of `drop_values`."""
    return drop_values(masked_softmax(scores, bias), seed, dropped)


_kept_scores: ContextVar[list[Tensor] | None] = ContextVar("kept_scores", default=None)


@contextmanager
def keeping_scores() -> Iterator[list[Tensor]]:
    """Have attention layers append the scores that they compute to a list, in the order of their calls.

    Scores are before the softmax, with the bias of the mask added: float32, (batch, heads, query, key). Attention is
    dense meanwhile, as the fused kernels keep no scores, and recomputes nothing in the backward pass.
    """
    kept: list[Tensor] = []
    token = _kept_scores.set(kept)
    try:
        yield kept
    finally:
        _kept_scores.reset(token)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class MultiHeadSelfAttention(ShapedLayer):
    """Multi-head self-attention from every token to the tokens of its text that a pattern allows.

    Query, key and value are one fused projection; see `QueryKeyValue`.

    Args:
        pattern: which keys of its text a query may attend to: one of `layers.patterns`, or its serialised form.
        positions: how attention depends on positions: one of `layers.patterns`, or its serialised form.
    Call arguments:
        inputs: float, (batch, length, hidden), or tokens without padding, (tokens, hidden); see `UnpadInputs`.
        padding_mask: int or bool, (batch, length). The number of each token's text in its row, 0 for padding; masks
            keys, never queries.
        bias: `attention_bias` of the mask and the pattern, if it is computed once for several layers.
        relative: float, (2 num_buckets, hidden). Of `Disentangled` positions: the vectors of distances.
        values: float, the shape of the inputs but for the width. What the values are projected from, in a shape that
            `has_own_values`; queries and keys are projected from the inputs.
    Returns:
        float, the shape of the inputs, `attention_dim` of the shape wide.
    Raises:
        ValueError: positions are `Disentangled`, and `relative` is missing.
    Attributes:
        is_rematerialised: recompute scores, probabilities and their products with the values in the backward pass; see
            `Backbone.set_rematerialised`.
    Source: Vaswani et al. 2017, section 3.2; arXiv:1706.03762.
    """

    def __init__(
        self,
        shape: EncoderShape | Mapping[str, Any],
        pattern: Full | Mapping[str, Any] = FULL,
        positions: Learned | Mapping[str, Any] = LEARNED,
        **kwargs: Any,
    ) -> None:
        super().__init__(shape, **kwargs)
        self.pattern, self.positions = make_kind(pattern, PATTERNS), make_kind(positions, POSITIONS)
        self.is_rematerialised = False
        self.query_key_value: Any
        if self.shape.has_own_values:
            self.query_key_value = QueryKeyAndValue(self.shape, dtype=self.dtype_policy, name="query_key_value")
        else:
            self.query_key_value = self.make_dense(
                self.shape.query_key_value_dim,
                "query_key_value",
                kind=QueryKeyValue,
                num_heads=self.shape.num_heads,
                use_bias=self.shape.attention_bias,
            )
        self.dropout = Dropout(self.shape.attention_dropout_rate, dtype=self.dtype_policy, name="dropout")
        self.output_dense = self.make_dense(
            self.shape.attention_dim, "output", is_output=True, use_bias=self.shape.attention_bias
        )
        if isinstance(self.positions, TransformerXL):
            self.relative_dense = self.make_dense(self.shape.hidden_dim, "relative", use_bias=False)

    def build(
        self,
        inputs_shape: Shape,
        padding_mask_shape: Shape | None = None,
        bias_shape: Shape | None = None,
        relative_shape: Shape | None = None,
        values_shape: Shape | None = None,
    ) -> None:
        batch, length, _ = inputs_shape
        if isinstance(self.positions, TransformerXL):
            self.relative_dense.build(inputs_shape[1:])
            self.content_bias, self.position_bias = (
                self.add_weight(
                    shape=(self.shape.num_heads, 1, self.shape.head_dim),
                    initializer=truncated_normal(self.shape.initializer_range),
                    name=name,
                )
                for name in ("content_bias", "position_bias")
            )
        self.query_key_value.build(*((inputs_shape,) if values_shape is None else (inputs_shape, values_shape)))
        self.dropout.build((batch, self.shape.num_heads, length, length))
        self.output_dense.build((batch, length, self.shape.attention_dim))

    def call(
        self,
        inputs: Tensor,
        padding_mask: Tensor,
        bias: Tensor | None = None,
        relative: Tensor | None = None,
        values: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        fused = call_of(self.query_key_value)(*((inputs,) if values is None else (inputs, values)))
        given = {} if relative is None else {"relative": relative}
        if training and self.is_rematerialised and _kept_scores.get() is None:
            compute = partial(rematerialise, self, partial(self._attend, training=True), **given)
        else:
            compute = partial(self._attend, training=training, **given)
        if is_unpadded(inputs):  # rows are grouped by width, so each group has a bias of its own
            context = map_rows(compute, fused, padding_mask)
        else:
            context = compute(fused, padding_mask) if bias is None else compute(fused, padding_mask, bias=bias)
        return call_of(self.output_dense)(context)

    def _attend(
        self,
        fused: Tensor,
        padding_mask: Tensor,
        bias: Tensor | None = None,
        relative: Tensor | None = None,
        training: bool | None = None,
    ) -> Tensor:
        """Return the attention output, (batch, length, hidden), from the fused query, key and value."""
        bias = attention_bias(padding_mask, self.pattern) if bias is None else bias
        dropout = self.dropout.draw(training)
        compute = partial(self._attend_densely, relative=relative, dropped=dropout[1] if dropout else 0)
        # The fused kernels neither take scores nor keep them.
        if type(self.positions) is not Learned or _kept_scores.get() is not None:
            return compute(fused, bias, dropout[0] if dropout else None)
        return attend(fused, bias, padding_mask, self.pattern, self.shape.num_heads, compute, dropout)

    def _attend_densely(
        self, fused: Tensor, bias: Tensor, seed: Tensor | None, relative: Tensor | None, dropped: int
    ) -> Tensor:
        length, num_heads = ops.shape(fused)[1], self.shape.num_heads
        query, key, value = split_heads(fused, length, num_heads, self.shape.head_dim)
        scores = self._score(query, key, relative)  # (batch, heads, query, key)
        if (kept := _kept_scores.get()) is not None:
            kept.append(ops.cast(scores, "float32") + ops.cast(bias, "float32"))
        probabilities = softmax_and_drop(scores, bias, seed, dropped) if dropped else masked_softmax(scores, bias)
        context = matmul(ops.cast(probabilities, value.dtype), value)  # (batch, heads, query, head_dim)
        return merge_heads(context)

    def _score(self, query: Tensor, key: Tensor, relative: Tensor | None) -> Tensor:
        """Return the scores of queries and keys, both (batch, heads, length, head_dim), by the kind of positions."""
        kind, length, num_heads = self.positions, ops.shape(query)[2], self.shape.num_heads
        scale = self.shape.head_dim**-0.5
        if isinstance(kind, Rotary):
            query, key = rotate(query, kind.theta), rotate(key, kind.theta)
        elif isinstance(kind, TransformerXL):
            sinusoids = ops.cast(make_sinusoids(length, self.shape.hidden_dim), self.compute_dtype)
            distances = ops.reshape(self.relative_dense(sinusoids), (1, 2 * length, num_heads, self.shape.head_dim))
            by_distance = matmul((query + self.position_bias) * scale, ops.transpose(distances, (0, 2, 3, 1)))
            return matmul((query + self.content_bias) * scale, ops.swapaxes(key, -1, -2)) + shift_distances(by_distance)
        elif isinstance(kind, Disentangled):
            if relative is None:
                raise ValueError("Disentangled attention must be called with `relative`. Received: None.")
            scale *= 3**-0.5  # three terms instead of one
            table = split_heads(self.query_key_value(relative)[None], relative.shape[0], num_heads, self.shape.head_dim)
            added = score_disentangled(query * scale, key * scale, table[:2], kind)
            return matmul(query * scale, ops.swapaxes(key, -1, -2)) + added
        scores = matmul(query * scale, ops.swapaxes(key, -1, -2))
        if isinstance(kind, Alibi):
            scores = ops.cast(scores, "float32") + alibi_bias(length, num_heads)
        return scores

    def compute_output_shape(
        self,
        inputs_shape: Shape,
        padding_mask_shape: Shape | None = None,
        bias_shape: Shape | None = None,
        relative_shape: Shape | None = None,
        values_shape: Shape | None = None,
    ) -> Shape:
        return inputs_shape

    def list_lora_layers(self, targets: Sequence[str]) -> list[tuple[Any, dict[str, Any]]]:
        """Return the layers that LoRA targets mean, with the arguments of `enable_lora` that they have of their own."""
        parts = [part for part in PARTS if part in targets]
        if self.shape.has_own_values:
            layers: list[tuple[Any, dict[str, Any]]] = [(getattr(self.query_key_value, part), {}) for part in parts]
        else:
            layers = [(self.query_key_value, {"parts": parts})] if parts else []
        return layers + ([(self.output_dense, {})] if "attention_output" in targets else [])

    def get_config(self) -> dict[str, Any]:
        kinds = {"pattern": describe_kind(self.pattern), "positions": describe_kind(self.positions)}
        return super().get_config() | kinds
