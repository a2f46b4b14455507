"""Layers of heads: pooling, masked-LM transform, output bias, span scores, replaced-token detection."""

import math
from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.products import matmul, one_hot
from keras_bert_flow.backends.values import Shape, Tensor
from keras_bert_flow.layers.dense import ShapedLayer, get_activation
from keras_bert_flow.layers.masks import MASKED_SCORE
from keras_bert_flow.layers.shape import EncoderShape


def gather_positions(sequence: Tensor, positions: Tensor) -> Tensor:
    """Gather positions of a sequence as a one-hot product.

    The product is exact, and so is its gradient, another product, deterministic; that of a gather adds rows in any
    order.

    Args:
        sequence: float, (batch, length, hidden).
        positions: int, (batch, picks).
    Returns:
        float, (batch, picks, hidden).
    """
    places = one_hot(positions, ops.shape(sequence)[1], sequence.dtype)  # (batch, picks, length)
    return matmul(places, sequence)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Pooler(ShapedLayer):
    """Pooler: the first token through a dense layer and an activation, tanh in BERT, unless the shape has none.

    Source: google-research/bert, modeling.py, `BertModel`, scope "pooler".
    """

    def __init__(self, shape: EncoderShape | Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(shape, **kwargs)
        if self.shape.has_dense_pooler:
            self.dense = self.make_dense(self.shape.hidden_dim, "dense", self.shape.pooler_act)

    def build(self, sequence_shape: Shape) -> None:
        if self.shape.has_dense_pooler:
            self.dense.build((sequence_shape[0], sequence_shape[-1]))

    def call(self, sequence: Tensor) -> Tensor:
        first = sequence[:, 0, :]  # (batch, hidden)
        return self.dense(first) if self.shape.has_dense_pooler else first

    def compute_output_shape(self, sequence_shape: Shape) -> Shape:
        return (sequence_shape[0], self.shape.hidden_dim)


class HeadTransform(ShapedLayer):
    """Base class of what comes before the projection of a head: a dense layer, an activation and a layer norm."""

    def __init__(self, shape: EncoderShape | Mapping[str, Any], **kwargs: Any) -> None:
        super().__init__(shape, **kwargs)
        activation = get_activation(self.shape.mlm_hidden_act or self.shape.hidden_act)
        self.dense = self.make_dense(
            self.shape.mlm_dim, "dense", activation, is_output=True, use_bias=self.shape.head_bias
        )
        self.layer_norm = self.make_layer_norm("layer_norm", self.shape.mlm_layer_norm_epsilon)

    def build_parts(self, inputs_shape: Shape) -> None:
        self.dense.build(inputs_shape)
        self.layer_norm.build((*inputs_shape[:-1], self.shape.mlm_dim))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class MaskedTokenTransform(HeadTransform):
    """Masked-LM transform: gather the masked positions, then dense, activation, layer norm.

    Call arguments:
        sequence: float, (batch, length, hidden).
        mask_positions: int, (batch, masks_per_sequence).
    Returns:
        float, (batch, masks_per_sequence, `mlm_dim` of the shape), in BERT the width of the token embeddings.
    Source: google-research/bert, run_pretraining.py, `get_masked_lm_output`.
    """

    def build(self, sequence_shape: Shape, mask_positions_shape: Shape | None = None) -> None:
        self.build_parts(sequence_shape)

    def call(self, sequence: Tensor, mask_positions: Tensor) -> Tensor:
        return self.layer_norm(self.dense(gather_positions(sequence, mask_positions)))

    def compute_output_shape(self, sequence_shape: Shape, mask_positions_shape: Shape) -> Shape:
        return (*mask_positions_shape, self.shape.mlm_dim)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class PredictionHead(HeadTransform):
    """The masked-LM transform of hidden states before another projection: (..., hidden) → (..., `mlm_dim`).

    So a head for a task can start from that of pre-training.

    Source: answerdotai/ModernBERT, src/bert_layers/model.py, `FlexBertPredictionHead`.
    """

    def build(self, inputs_shape: Shape) -> None:
        self.build_parts(inputs_shape)

    def call(self, inputs: Tensor) -> Tensor:
        return self.layer_norm(self.dense(inputs))

    def compute_output_shape(self, inputs_shape: Shape) -> Shape:
        return (*inputs_shape[:-1], self.shape.mlm_dim)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class OutputBias(keras.layers.Layer):
    """Add a bias to each logit. Create it with `dtype="float32"`, so that the loss gets float32 logits.

    Args:
        num_pieces: number of logits that belong to pieces of the vocabulary; the others become `MASKED_SCORE`. Default:
            all.
    """

    def __init__(self, num_pieces: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_pieces = num_pieces

    def build(self, logits_shape: Shape) -> None:
        self.bias = self.add_weight(shape=(logits_shape[-1],), initializer="zeros", name="bias")

    def call(self, logits: Tensor) -> Tensor:
        logits = logits + self.bias
        if self.num_pieces is None:
            return logits
        return ops.where(ops.arange(logits.shape[-1]) < self.num_pieces, logits, ops.cast(MASKED_SCORE, logits.dtype))

    def compute_output_shape(self, logits_shape: Shape) -> Shape:
        return logits_shape

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"num_pieces": self.num_pieces}


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class SpanScores(keras.layers.Layer):
    """Split span logits into start and end scores, with very low scores for padding.

    Call arguments:
        logits: float, (batch, length, 2).
        padding_mask: int or bool, (batch, length). 1 for a real token.
    Returns:
        {"start": float, (batch, length), "end": the same}. `MASKED_SCORE` for padding.
    """

    def build(self, logits_shape: Shape, padding_mask_shape: Shape | None = None) -> None:
        pass

    def call(self, logits: Tensor, padding_mask: Tensor) -> dict[str, Tensor]:
        is_real = ops.cast(padding_mask, "bool")
        masked = ops.cast(MASKED_SCORE, logits.dtype)
        return {name: ops.where(is_real, logits[..., place], masked) for place, name in enumerate(("start", "end"))}

    def compute_output_shape(self, logits_shape: Shape, padding_mask_shape: Shape | None = None) -> dict[str, Shape]:
        return {"start": tuple(logits_shape[:-1]), "end": tuple(logits_shape[:-1])}


# Pool the tokens of a text into one vector.

POOLINGS = ("mean", "cls", "max")
SMALLEST_SQUARE = 1e-24  # the square of the epsilon of `torch.nn.functional.normalize`


def unit_length(vectors: Tensor) -> Tensor:
    """Normalise vectors to unit length along the last axis; the zero vector stays zero, and so does its gradient.

    Keras' `UnitNormalization` computes the same, but its gradient at 0, the vector of filler, is NaN.
    """
    squares = ops.sum(ops.square(vectors), axis=-1, keepdims=True)
    return vectors * ops.rsqrt(ops.maximum(squares, SMALLEST_SQUARE))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TokenPooling(keras.layers.Layer):
    """Pool the real tokens of each row; a row without any gives zeros, or with `cls` its first token.

    Call arguments:
        sequence: float, (batch, length, hidden).
        padding_mask: int or bool, (batch, length). 1 for a real token.
    Returns:
        float, (batch, hidden). Computed in float32 if the layer's dtype is float32.
    Args:
        pooling: `mean` or `max` of the real tokens, or `cls`, the first one.
        normalize: divide each vector by its length.
    Raises:
        ValueError: `pooling` is none of these.
    Source: Reimers and Gurevych 2019, section 3; arXiv:1908.10084.
    """

    def __init__(self, pooling: str = "mean", normalize: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if pooling not in POOLINGS:
            raise ValueError(f"`pooling` must be one of {', '.join(POOLINGS)}. Received: pooling={pooling!r}.")
        self.pooling = pooling
        self.normalize = normalize

    def build(self, sequence_shape: Shape, padding_mask_shape: Shape | None = None) -> None:
        pass

    def call(self, sequence: Tensor, padding_mask: Tensor) -> Tensor:
        vectors = self._pool(sequence, padding_mask)
        return unit_length(vectors) if self.normalize else vectors

    def _pool(self, sequence: Tensor, padding_mask: Tensor) -> Tensor:
        if self.pooling == "cls":
            return sequence[:, 0, :]
        is_real = ops.expand_dims(ops.cast(padding_mask, "bool"), -1)  # (batch, length, 1)
        if self.pooling == "max":
            largest = ops.max(ops.where(is_real, sequence, ops.cast(MASKED_SCORE, sequence.dtype)), axis=1)
            return ops.where(ops.any(is_real, axis=1), largest, ops.zeros_like(largest))
        weights = ops.cast(is_real, sequence.dtype)
        return ops.sum(sequence * weights, axis=1) / ops.maximum(ops.sum(weights, axis=1), 1)

    def compute_output_shape(self, sequence_shape: Shape, padding_mask_shape: Shape | None = None) -> Shape:
        return (sequence_shape[0], sequence_shape[-1])

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"pooling": self.pooling, "normalize": self.normalize}


# Token replacement of ELECTRA: sample tokens from a masked LM, and score whether they were detected.


def draw_classes(logits: Tensor, draws: Tensor) -> Tensor:
    """Sample a class from the softmax of each row of logits, by inverse transform sampling.

    The cumulative sum is taken in blocks, whose size is about the root of the number of classes: one over all classes
    is slow on JAX.

    Args:
        logits: float32, (rows, classes).
        draws: float32, (rows,), uniform in [0, 1).
    Returns:
        int32, (rows,). The same on every backend, unless a draw is within rounding error of a class boundary.
    """
    classes = logits.shape[-1]
    size = math.isqrt(classes - 1) + 1
    blocks = -(-classes // size)
    shares = ops.exp(logits - ops.max(logits, axis=-1, keepdims=True))
    shares = ops.reshape(ops.pad(shares, ((0, 0), (0, blocks * size - classes))), (-1, blocks, size))
    totals = ops.sum(shares, axis=-1)  # (rows, blocks)
    ends = ops.cumsum(totals, axis=-1)
    target = draws[:, None] * ends[:, -1:]
    block = ops.minimum(ops.sum(ops.cast(ends <= target, "int32"), axis=-1, keepdims=True), blocks - 1)
    target = target - ops.take_along_axis(ends - totals, block, axis=-1)
    rows = ops.arange(ops.shape(logits)[0], dtype="int32") * blocks + block[:, 0]
    ends = ops.cumsum(ops.take(ops.reshape(shares, (-1, size)), rows, axis=0), axis=-1)  # (rows, size)
    place = ops.minimum(ops.sum(ops.cast(ends <= target, "int32"), axis=-1), size - 1)
    return ops.minimum(block[:, 0] * size + place, classes - 1)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class ReplaceTokens(keras.layers.Layer):
    """Replace masked tokens by samples from a masked LM. No gradient flows through the samples.

    Call arguments:
        token_ids: int, (batch, length). Masked.
        mask_positions: int, (batch, masks_per_sequence). 0, the position of [CLS], for filler.
        mask_ids: int, (batch, masks_per_sequence). The original tokens.
        logits: float32, (batch, masks_per_sequence, vocabulary).
        draws: float32, (batch, masks_per_sequence), uniform in [0, 1).
    Returns:
        {"token_ids": int32, (batch, length), "is_replaced": bool, (batch, length)}. A sample equal to the original
        token does not count as replaced.
    Source: Clark et al. 2020 (ELECTRA), section 2; arXiv:2003.10555.
    """

    def build(self, *shapes: Shape, **named_shapes: Shape) -> None:
        pass

    def call(
        self, token_ids: Tensor, mask_positions: Tensor, mask_ids: Tensor, logits: Tensor, draws: Tensor
    ) -> dict[str, Tensor]:
        logits = ops.stop_gradient(ops.reshape(logits, (-1, logits.shape[-1])))
        drawn = ops.reshape(draw_classes(logits, ops.reshape(draws, (-1,))), ops.shape(mask_positions))
        # (batch, masks_per_sequence, length)
        places = one_hot(mask_positions, ops.shape(token_ids)[1], dtype="int32")
        places = places * ops.cast(mask_positions > 0, "int32")[..., None]
        is_masked = ops.max(places, axis=1) > 0
        replaced, original = (
            ops.where(is_masked, ops.max(places * ops.cast(tokens, "int32")[..., None], axis=1), token_ids)
            for tokens in (drawn, mask_ids)
        )
        return {"token_ids": replaced, "is_replaced": ops.not_equal(replaced, original)}

    def compute_output_spec(
        self, token_ids: Tensor, mask_positions: Tensor, mask_ids: Tensor, logits: Tensor, draws: Tensor
    ) -> dict[str, keras.KerasTensor]:
        return {
            "token_ids": keras.KerasTensor(token_ids.shape, "int32"),
            "is_replaced": keras.KerasTensor(token_ids.shape, "bool"),
        }


@keras.saving.register_keras_serializable(package="keras_bert_flow", name="Verdicts")  # the name in saved files
class DetectionLogits(keras.layers.Layer):
    """Convert the logits of "replaced" into two-class logits, incorrect and correct, so that every label is 1.

    The loss is then a classification loss whose labels are known before the tokens are sampled.

    Call arguments:
        logits: float32, (batch, length).
        is_replaced: bool, (batch, length).
    Returns:
        float32, (batch, length, 2).
    """

    def build(self, logits_shape: Shape, is_replaced_shape: Shape | None = None) -> None:
        pass

    def call(self, logits: Tensor, is_replaced: Tensor) -> Tensor:
        correct = ops.where(is_replaced, logits, -logits)
        return ops.stack([ops.zeros_like(correct), correct], axis=-1)

    def compute_output_shape(self, logits_shape: Shape, is_replaced_shape: Shape | None = None) -> Shape:
        return (*logits_shape, 2)
