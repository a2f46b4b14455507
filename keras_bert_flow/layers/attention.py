"""Multi-head self-attention with a padding mask, its projections, and packing of real tokens."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.fused import drop_values, fuse
from keras_bert_flow.backends.products import matmul, split_heads
from keras_bert_flow.backends.token_packing import is_packable, map_rows, pack_tokens, unpack_tokens
from keras_bert_flow.backends.values import Shape, Tensor
from keras_bert_flow.layers.dense import Dense, Dropout, ShapedLayer
from keras_bert_flow.layers.shape import EncoderShape

# Fused query-key-value projection, with separate LoRA matrices for each of the three.

PARTS = ("query", "key", "value")


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class QueryKeyValue(Dense):
    """Fused query-key-value projection: a dense layer whose outputs are ordered (heads, 3, head_dim).

    With this order, sharding the last axis of the kernel evenly gives each device whole heads.

    Args:
        num_heads: number of attention heads.
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
        self._lora_matrices = {
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
        return ops.concatenate([first for first, _ in self._lora_matrices.values()], axis=1)

    @property
    def lora_kernel_b(self) -> Tensor:
        """The second LoRA matrices of all parts, stacked, (parts · rank, units); 0 in the columns of other parts."""
        return ops.concatenate([self._spread(part, second) for part, (_, second) in self._lora_matrices.items()])

    def _spread(self, part: str, matrix: Tensor) -> Tensor:
        """Move the columns of a part, (rank, units / 3), to their positions in the kernel, (rank, units)."""
        place, rank = PARTS.index(part), matrix.shape[0]
        heads = ops.reshape(matrix, (rank, self.num_heads, 1, -1))  # (rank, heads, 1, head_dim)
        padded = ops.pad(heads, ((0, 0), (0, 0), (place, len(PARTS) - 1 - place), (0, 0)))
        return ops.reshape(padded, (rank, self.units))

    def list_lora(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return part → its two LoRA matrices."""
        return dict(self._lora_matrices)

    def list_lora_matrices(self) -> dict[str, Tensor]:
        return {
            f"{part}_{letter}": matrix
            for part, pair in self._lora_matrices.items()
            for letter, matrix in zip("ab", pair, strict=True)
        }

    def describe_lora(self) -> dict[str, Any]:
        return super().describe_lora() | {"parts": list(self._lora_matrices)}

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"num_heads": self.num_heads}


# Far below any score, yet finite: in a row without real keys it absorbs the scores, and the softmax is uniform instead
# of NaN. google-research/bert adds -10000, which gives the same result wherever there is a real key.
MASKED_SCORE = -1e9


def attention_bias(padding_mask: Tensor) -> Tensor:
    """Convert a padding mask into an additive attention bias.

    Args:
        padding_mask: int or bool, (batch, length). 1 for a real token.
    Returns:
        float32, (batch, 1, 1, length). 0 for a real key, `MASKED_SCORE` for padding.
    """
    is_real = ops.expand_dims(ops.cast(padding_mask, "bool"), (1, 2))
    return ops.where(is_real, 0.0, MASKED_SCORE)


def masked_softmax(scores: Tensor, padding_mask: Tensor) -> Tensor:
    """Return the softmax over the real keys, computed in float32 and cast to the dtype of the scores.

    Args:
        scores: float, (batch, heads, query, key).
        padding_mask: int or bool, (batch, key). 1 for a real token.
    """
    bias = attention_bias(padding_mask)
    if keras.backend.standardize_dtype(scores.dtype) == "bfloat16":
        # Half the bytes of a float32 sum, and exact: a real key adds 0. float16 cannot represent the bias of padding.
        scores, bias = scores + ops.cast(bias, "bfloat16"), 0.0
        if keras.backend.backend() == "torch":
            return ops.softmax(scores, axis=-1)  # float32 internally, without the copies that casts would make
    return ops.cast(ops.softmax(ops.cast(scores, "float32") + bias, axis=-1), scores.dtype)


@fuse
def softmax_and_drop(scores: Tensor, padding_mask: Tensor, seed: Tensor, dropped: int) -> Tensor:
    """Apply `masked_softmax`, then dropout; the last two arguments are those of `drop_values`."""
    return drop_values(masked_softmax(scores, padding_mask), seed, dropped)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class MultiHeadSelfAttention(ShapedLayer):
    """Multi-head self-attention from every token to the real tokens of its row.

    Query, key and value are one fused projection; see `QueryKeyValue`.

    Call arguments:
        inputs: float, (batch, length, hidden), or packed tokens, (tokens, hidden); see `PackTokens`.
        padding_mask: int or bool, (batch, length). 1 for a real token; masks keys, never queries.
    Returns:
        float, the shape of the inputs.
    Source: Vaswani et al. 2017, section 3.2; arXiv:1706.03762.
    """

    def __init__(self, shape: EncoderShape | Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(shape, **kwargs)
        self.query_key_value = self.make_dense(
            3 * self.shape.hidden_dim, "query_key_value", kind=QueryKeyValue, num_heads=self.shape.num_heads
        )
        self.dropout = Dropout(self.shape.attention_dropout_rate, dtype=self.dtype_policy, name="dropout")
        self.output_dense = self.make_dense(self.shape.hidden_dim, "output")

    def build(self, inputs_shape: Shape, padding_mask_shape: Shape | None = None) -> None:
        batch, length, _ = inputs_shape
        self.query_key_value.build(inputs_shape)
        self.dropout.build((batch, self.shape.num_heads, length, length))
        self.output_dense.build((batch, length, self.shape.hidden_dim))

    def call(self, inputs: Tensor, padding_mask: Tensor, training: bool | None = None) -> Tensor:
        fused = self.query_key_value(inputs)
        attend = partial(self._attend, training=training)
        is_packed = len(inputs.shape) == 2  # (tokens, hidden)
        context = map_rows(attend, fused, padding_mask) if is_packed else attend(fused, padding_mask)
        return self.output_dense(context)

    def _attend(self, fused: Tensor, padding_mask: Tensor, training: bool | None) -> Tensor:
        """Return the attention output, (batch, length, hidden), from the fused query, key and value."""
        length = ops.shape(fused)[1]
        query, key, value = split_heads(fused, length, self.shape.num_heads, self.shape.head_dim)
        scores = matmul(query * self.shape.head_dim**-0.5, ops.swapaxes(key, -1, -2))  # (batch, heads, query, key)
        if training and self.shape.attention_dropout_rate > 0:
            probabilities = softmax_and_drop(scores, padding_mask, *self.dropout.draw())
        else:
            probabilities = masked_softmax(scores, padding_mask)
        context = matmul(probabilities, value)  # (batch, heads, query, head_dim)
        return ops.reshape(ops.transpose(context, (0, 2, 1, 3)), (-1, length, self.shape.hidden_dim))

    def compute_output_shape(self, inputs_shape: Shape, padding_mask_shape: Shape | None = None) -> Shape:
        return inputs_shape


# Layers that remove padding before the encoder blocks and restore it after them.


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class PackTokens(keras.layers.Layer):
    """Remove padding from a batch for the encoder blocks, in training, if `is_packable`.

    Dense layers, layer norms and dropout then spend no time on padding; attention unpacks the rows again. The output
    for a real token does not depend on padding, so outputs and gradients are the same.

    Call arguments:
        hidden: float, (batch, length, units).
        padding_mask: int or bool, (batch, length). 1 for a real token.
    Returns:
        float, (tokens, units), or `hidden` unchanged.
    """

    def build(self, hidden_shape: Shape, padding_mask_shape: Shape | None = None) -> None:
        pass

    def call(self, hidden: Tensor, padding_mask: Tensor, training: bool | None = None) -> Tensor:
        return pack_tokens(hidden, padding_mask) if training and is_packable(padding_mask) else hidden

    def compute_output_shape(self, hidden_shape: Shape, padding_mask_shape: Shape | None = None) -> Shape:
        return hidden_shape


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class UnpackTokens(keras.layers.Layer):
    """Invert `PackTokens`: return (batch, length, units) with zeros for padding."""

    def build(self, hidden_shape: Shape, padding_mask_shape: Shape | None = None) -> None:
        pass

    def call(self, hidden: Tensor, padding_mask: Tensor) -> Tensor:
        is_packed = len(hidden.shape) == 2  # (tokens, units)
        return unpack_tokens(hidden, padding_mask) if is_packed else hidden

    def compute_output_shape(self, hidden_shape: Shape, padding_mask_shape: Shape | None = None) -> Shape:
        return hidden_shape
