"""Token replacement of ELECTRA: sample tokens from a masked LM, and score whether they were detected."""

import math

import keras
from keras import ops


def draw_classes(logits, draws):
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

    def build(self, *shapes, **named_shapes):
        pass

    def call(self, token_ids, mask_positions, mask_ids, logits, draws):
        logits = ops.stop_gradient(ops.reshape(logits, (-1, logits.shape[-1])))
        drawn = ops.reshape(draw_classes(logits, ops.reshape(draws, (-1,))), ops.shape(mask_positions))
        # (batch, masks_per_sequence, length)
        places = ops.one_hot(mask_positions, ops.shape(token_ids)[1], dtype="int32")
        places = places * ops.cast(mask_positions > 0, "int32")[..., None]
        is_masked = ops.max(places, axis=1) > 0

        def put(tokens):
            return ops.where(is_masked, ops.max(places * ops.cast(tokens, "int32")[..., None], axis=1), token_ids)

        replaced, original = put(drawn), put(mask_ids)
        return {"token_ids": replaced, "is_replaced": ops.not_equal(replaced, original)}

    def compute_output_spec(self, token_ids, mask_positions, mask_ids, logits, draws):
        return {
            "token_ids": keras.KerasTensor(token_ids.shape, "int32"),
            "is_replaced": keras.KerasTensor(token_ids.shape, "bool"),
        }


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Verdicts(keras.layers.Layer):
    """Convert the logits of "replaced" into two-class logits, wrong and right verdict, so that every label is 1.

    The loss is then a classification loss whose labels are known before the tokens are sampled.

    Call arguments:
        logits: float32, (batch, length).
        is_replaced: bool, (batch, length).
    Returns:
        float32, (batch, length, 2).
    """

    def build(self, logits_shape, is_replaced_shape=None):
        pass

    def call(self, logits, is_replaced):
        right = ops.where(is_replaced, logits, -logits)
        return ops.stack([ops.zeros_like(right), right], axis=-1)

    def compute_output_shape(self, logits_shape, is_replaced_shape=None):
        return (*logits_shape, 2)
