"""Multi-head self-attention: its fused projection, and the layer."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.fused import drop_values, fuse
from keras_bert_flow.backends.kernels import attend, call_of
from keras_bert_flow.backends.products import matmul, merge_heads, split_heads
from keras_bert_flow.backends.unpadding import map_rows
from keras_bert_flow.backends.values import Shape, Tensor
from keras_bert_flow.backends.windows import divide_keys, divide_row, is_windowed, join_row
from keras_bert_flow.layers.dense import Dense, Dropout, ShapedLayer, rematerialise, truncated_normal
from keras_bert_flow.layers.masks import MASKED_SCORE, attention_bias, is_unpadded, make_bias
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
from keras_bert_flow.layers.positions import (
    alibi_bias,
    make_sinusoids,
    rotate_fused,
    score_disentangled,
    shift_distances,
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
        bias: `make_bias` of the mask and the pattern, if it is computed once for several layers.
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
        # Of `Disentangled` positions: what projects the vectors of distances, unless the content's projections do
        self.position_dense: dict[str, Any] = {}
        if isinstance(self.positions, Disentangled) and not self.shape.shares_projections:
            parts = {"p2c": "position_query", "c2p": "position_key"}
            self.position_dense = {
                term: self.make_dense(self.shape.attention_dim, name)
                for term, name in parts.items()
                if term in self.positions.terms
            }

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
        for layer in self.position_dense.values():
            layer.build((None, self.shape.hidden_dim))
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
        dropout = self.dropout.draw(training)
        compute = partial(self._attend_densely, relative=relative, dropped=dropout[1] if dropout else 0)
        if isinstance(self.positions, Rotary):
            fused = rotate_fused(fused, self.shape.num_heads, self.positions.theta)
        # The fused kernels neither take scores nor keep them, and blocks of a window have not all of them.
        if type(self.positions) not in (Learned, Rotary) or _kept_scores.get() is not None:
            if bias is None or is_windowed(bias):
                bias = attention_bias(padding_mask, self.pattern)
            return compute(fused, bias, dropout[0] if dropout else None)
        bias = make_bias(padding_mask, self.pattern) if bias is None else bias
        return attend(fused, bias, padding_mask, self.pattern, self.shape.num_heads, compute, dropout)

    def _attend_densely(
        self, fused: Tensor, bias: Tensor, seed: Tensor | None, relative: Tensor | None, dropped: int
    ) -> Tensor:
        length, num_heads = ops.shape(fused)[1], self.shape.num_heads
        query, key, value = split_heads(fused, length, num_heads, self.shape.head_dim)
        if has_blocks := is_windowed(bias):  # (batch, heads, blocks, tokens of a block or of three, head_dim)
            size = bias.shape[3]
            query, key, value = divide_row(query, size), divide_keys(key, size), divide_keys(value, size)
        scores = self._score(query, key, relative)  # (batch, heads, query, key)
        if (kept := _kept_scores.get()) is not None:
            kept.append(ops.cast(scores, "float32") + ops.cast(bias, "float32"))
        probabilities = softmax_and_drop(scores, bias, seed, dropped) if dropped else masked_softmax(scores, bias)
        context = matmul(ops.cast(probabilities, value.dtype), value)  # (batch, heads, query, head_dim)
        return merge_heads(join_row(context, length) if has_blocks else context)

    def _score(self, query: Tensor, key: Tensor, relative: Tensor | None) -> Tensor:
        """Return the scores of queries and keys, both (batch, heads, length, head_dim), by the kind of positions.

        Those of `Rotary` are rotated already.
        """
        kind, length, num_heads = self.positions, ops.shape(query)[2], self.shape.num_heads
        scale = self.shape.head_dim**-0.5
        if isinstance(kind, TransformerXL):
            sinusoids = ops.cast(make_sinusoids(length, self.shape.hidden_dim), self.compute_dtype)
            distances = ops.reshape(self.relative_dense(sinusoids), (1, 2 * length, num_heads, self.shape.head_dim))
            by_distance = matmul((query + self.position_bias) * scale, ops.transpose(distances, (0, 2, 3, 1)))
            return matmul((query + self.content_bias) * scale, ops.swapaxes(key, -1, -2)) + shift_distances(by_distance)
        elif isinstance(kind, Disentangled):
            if relative is None:
                raise ValueError("Disentangled attention must be called with `relative`. Received: None.")
            scale *= (1 + len(kind.terms.split("|"))) ** -0.5  # so many terms instead of one
            added = score_disentangled(query * scale, key * scale, self._project_distances(relative), kind)
            return matmul(query * scale, ops.swapaxes(key, -1, -2)) + added
        scores = matmul(query * scale, ops.swapaxes(key, -1, -2))
        if isinstance(kind, Alibi):
            scores = ops.cast(scores, "float32") + alibi_bias(length, num_heads)
        return scores

    def _project_distances(self, relative: Tensor) -> tuple[Tensor | None, ...]:
        """Return the queries and the keys of the vectors of distances, float, (1, heads, 2 num_buckets, head_dim).

        Those of a term that the positions lack are None, or not used.
        """
        count, num_heads, width = relative.shape[0], self.shape.num_heads, self.shape.head_dim
        if self.shape.shares_projections:
            return split_heads(call_of(self.query_key_value)(relative)[None], count, num_heads, width)[:2]
        query, key = (
            None
            if (part := self.position_dense.get(term)) is None
            else ops.transpose(ops.reshape(call_of(part)(relative), (1, count, num_heads, width)), (0, 2, 1, 3))
            for term in ("p2c", "c2p")
        )
        return query, key

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
