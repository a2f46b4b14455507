"""Losses and metrics that Keras lacks for these output shapes, for datasets with padding rows, and for pairs."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_bert_flow.backends.values import Tensor
from keras_bert_flow.layers.heads import unit_length
from keras_bert_flow.layers.masks import MASKED_SCORE
from keras_bert_flow.models.defaults import TokenAccuracy, TokenLoss


class WeightedMean(keras.losses.Loss):
    """Base class of losses whose sum is divided by that of the sample weights, unless another reduction is given."""

    def __init__(self, reduction: str = "mean_with_sample_weight", **kwargs: Any) -> None:
        super().__init__(reduction=reduction, **kwargs)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class SquaredError(WeightedMean):
    """Squared error of one number per row, (batch,); Keras' own averages over the last axis, here the batch axis."""

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return ops.square(ops.reshape(y_true, ops.shape(y_pred)) - y_pred)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TagLoss(WeightedMean, TokenLoss):
    """Cross-entropy of the labelled tokens; a label below 0, such as -1 or -100, means none and has weight 0.

    Example:
        >>> labels = np.array([[1, 0, -100]])  # the last token has no label
        >>> logits = np.array([[[0, 0], [0, 0], [9, -9]]], "float32")
        >>> round(float(kbf.TagLoss()(labels, logits)), 4)
        0.6931
    """

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        return super().__call__(*weigh_tags(y_true, y_pred, sample_weight))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TagAccuracy(TokenAccuracy):
    """Accuracy over the labelled tokens, as for `TagLoss`."""

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        return super().update_state(*weigh_tags(y_true, y_pred, sample_weight))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class LabelLoss(keras.losses.BinaryCrossentropy):
    """Binary cross-entropy of multi-label logits, averaged over labels; NaN for a label outside 0 to 1."""

    def __init__(self, from_logits: bool = True, reduction: str = "mean_with_sample_weight", **kwargs: Any) -> None:
        super().__init__(from_logits=from_logits, reduction=reduction, **kwargs)

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        losses = super().call(y_true, y_pred)
        is_valid = ops.all(ops.logical_and(y_true >= 0, y_true <= 1), axis=-1)
        return ops.where(is_valid, losses, ops.cast(float("nan"), losses.dtype))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class LabelAccuracy(keras.metrics.Mean):
    """Binary accuracy of multi-label logits, with threshold 0; Keras' own does not take logits."""

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        is_right = ops.equal(ops.convert_to_tensor(y_pred) > 0, ops.cast(y_true, "float32") > 0.5)
        return super().update_state(ops.mean(ops.cast(is_right, "float32"), axis=-1), sample_weight)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BinaryTokenLoss(WeightedMean):
    """Binary cross-entropy of each token's logit, (batch, length); Keras' own averages over a row."""

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return ops.binary_crossentropy(ops.cast(y_true, y_pred.dtype), y_pred, from_logits=True)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BinaryTokenAccuracy(keras.metrics.Mean):
    """Binary accuracy of each token's logit, with threshold 0."""

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        is_right = ops.equal(ops.convert_to_tensor(y_pred) > 0, ops.cast(y_true, "float32") > 0.5)
        return super().update_state(ops.cast(is_right, "float32"), sample_weight)


def weigh_tags(labels: Tensor, logits: Tensor, sample_weight: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return labels clipped to at least 0, the logits, and weights of 0 where the label was negative.

    Args:
        labels: int, (batch, length).
        logits: float, (batch, length, tags).
        sample_weight: float, (batch, length) or (batch,).
    """
    labels = ops.cast(labels, "int32")
    weights = ops.cast(labels >= 0, "float32")
    if sample_weight is not None:
        sample_weight = ops.cast(sample_weight, "float32")
        weights = weights * (sample_weight if len(sample_weight.shape) == 2 else ops.reshape(sample_weight, (-1, 1)))
    return ops.maximum(labels, 0), logits, weights


# Losses of a whole dataset: means over rows or tokens by their weights, not over batches.

MEANS = ("mean_with_sample_weight", "sum")  # reductions of losses whose mean over a dataset is known


@dataclass(frozen=True)
class DatasetLosses:
    """The means of the losses of a model over all batches of an evaluation.

    Keras averages the losses of batches by their numbers of rows, which counts filler rows of weight 0, and tokens in
    a batch with few of them more than others.

    Attributes:
        losses: output → loss without a reduction; one output may have the name None.
        weights: output → factor of its mean in the total.
    """

    losses: Mapping[str | None, keras.losses.Loss]
    weights: Mapping[str | None, float]

    @classmethod
    def make(cls, losses: Any, weights: Any) -> "DatasetLosses | None":
        """Return the losses of a model, or None if the mean of one over a dataset is not defined."""
        losses = losses if isinstance(losses, Mapping) else {None: losses}
        # Of this package or of Keras, and a mean or a sum: others divide in other ways.
        modules = ("keras_bert_flow.models.", keras.losses.Loss.__module__.partition(".")[0] + ".")
        for loss in losses.values():
            is_known = isinstance(loss, keras.losses.Loss) and type(loss).__module__.startswith(modules)
            if not is_known or loss.reduction not in MEANS:
                return None
        if weights is not None and not isinstance(weights, Mapping):
            return None
        return cls(
            {name: type(loss).from_config(loss.get_config() | {"reduction": "none"}) for name, loss in losses.items()},
            {name: 1.0 if weights is None else weights.get(name, 1.0) for name in losses},
        )

    def build_metrics(self, model: keras.Model) -> None:
        """Create the metrics of single losses, which Keras does in a step that computes them its way."""
        names = {metric.name for metric in model.metrics}
        if len(self.losses) == 1 or all(f"{name}_loss" in names for name in self.losses):
            return
        shapes = {name: [size or 1 for size in output.shape] for name, output in model.output.items()}
        outputs = {name: np.zeros(shape, "float32") for name, shape in shapes.items()}
        labels = {name: np.zeros(output.shape[:-1], "int32") for name, output in outputs.items()}
        model.compute_loss(y=labels, y_pred=outputs)
        model.reset_metrics()

    def update(self, metrics: list[Any], y: Any, y_pred: Any, sample_weight: Any) -> None:
        """Add a batch to the metrics of a model: `loss`, and of several outputs `OUTPUT_loss` each."""
        means = {metric.name: metric for metric in metrics}
        total: Any = 0.0
        for name, loss in self.losses.items():
            labels, outputs, weights = (
                each.get(name) if isinstance(each, Mapping) and name is not None else each
                for each in (y, y_pred, sample_weight)
            )
            value, weight = _measure(loss, labels, outputs, weights)
            if len(self.losses) == 1:
                means["loss"].update_state(self.weights[name] * value, sample_weight=weight)
                return
            mean = means[f"{name}_loss"]
            mean.update_state(value, sample_weight=weight)
            total = total + self.weights[name] * mean.result()
        means["loss"].reset_state()
        means["loss"].update_state(total)


def _measure(loss: keras.losses.Loss, labels: Any, outputs: Any, weights: Any) -> tuple[Any, Any]:
    """Return the weighted mean of the losses of a batch, and the sum of the weights."""
    losses = loss(labels, outputs, weights)
    if isinstance(loss, TagLoss):
        weights = weigh_tags(labels, outputs, weights)[2]
    # As Keras divides: by the sum of the weights as they are given.
    weights = ops.ones_like(losses) if weights is None else ops.convert_to_tensor(weights, dtype=losses.dtype)
    weight = ops.sum(weights)
    total = ops.sum(losses)
    # Of a batch without weight the mean is 0, and it does not count.
    return ops.where(weight > 0, total / ops.where(weight > 0, weight, ops.ones_like(weight)), total), weight


# Losses and metrics for text embeddings trained on pairs: cosine and in-batch contrastive.


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class CosineLoss(SquaredError):
    """Squared error of the cosine similarity of each pair.

    Call arguments:
        y_true: float, (batch,) or (batch, 1). The target cosine.
        y_pred: float, (batch, 2, hidden). The vectors of both texts.
    Source: Reimers and Gurevych 2019, section 3, regression objective; `CosineSimilarityLoss` of
    `sentence_transformers`.
    """

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        return super().call(y_true, pair_cosines(y_pred))


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class CosineError(keras.metrics.RootMeanSquaredError):
    """Root mean squared error of the cosine similarity, as for `CosineLoss`."""

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        cosines = pair_cosines(y_pred)
        return super().update_state(ops.reshape(y_true, ops.shape(cosines)), cosines, sample_weight)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class ContrastiveLoss(TokenLoss):
    """Contrastive loss with in-batch negatives (InfoNCE): find the second text of each pair by the scaled cosine.

    Call arguments:
        y_true: int, (batch, 2). Ids of both texts; texts with the same id are the same text.
        y_pred: float, (batch, 2, hidden). The vectors of both texts.
        sample_weight: float, (batch,). A pair of weight 0 is filler: its second text is never a negative.
    Args:
        scale: factor of the cosines.
    Source: Henderson et al. 2017, section 4.4, arXiv:1705.00652; `MultipleNegativesRankingLoss` of
    `sentence_transformers`, which has no such ids: its batches contain no text twice.
    """

    def __init__(self, scale: float = 20.0, reduction: str = "mean_with_sample_weight", **kwargs: Any) -> None:
        super().__init__(reduction=reduction, **kwargs)
        self.scale = scale

    def __call__(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> Tensor:
        own, logits = candidate_logits(y_pred, y_true, sample_weight, self.scale)
        return super().__call__(own, logits, sample_weight)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"scale": self.scale}


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class ContrastiveAccuracy(TokenAccuracy):
    """Share of pairs whose second text is the nearest of the candidates of `ContrastiveLoss`."""

    def update_state(self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None) -> None:
        own, logits = candidate_logits(y_pred, y_true, sample_weight)
        return super().update_state(own, logits, sample_weight)


def pair_cosines(vectors: Tensor) -> Tensor:
    """Return the cosine of each pair, (batch,), of vectors, (batch, 2, hidden)."""
    units = unit_length(ops.convert_to_tensor(vectors))
    return ops.sum(units[:, 0] * units[:, 1], axis=-1)


def candidate_logits(
    vectors: Tensor, numbers: Tensor, weights: Tensor | None = None, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return the place of each row's own second text, (batch,), and logits, (batch, batch).

    A logit is the scaled cosine of a first text with a second one. It is `MASKED_SCORE` if the second text is not a
    valid negative: it is filler, or its pair shares a text with that of the row. Each row's own second text is always a
    candidate.
    """
    units = unit_length(ops.convert_to_tensor(vectors))
    logits = ops.matmul(units[:, 0], ops.transpose(units[:, 1])) * scale
    is_own = ops.eye(ops.shape(logits)[0], dtype="bool")
    numbers = ops.cast(numbers, "int32")
    is_same = ops.equal(numbers[:, None, :, None], numbers[None, :, None, :])  # (pair, pair, its text, its text)
    is_negative = ops.logical_not(ops.any(is_same, axis=(-1, -2)))
    if weights is not None:
        is_real = ops.reshape(ops.cast(weights, "float32"), (1, -1)) > 0
        is_negative = ops.logical_and(is_negative, is_real)
    logits = ops.where(ops.logical_or(is_own, is_negative), logits, ops.cast(MASKED_SCORE, logits.dtype))
    return ops.arange(ops.shape(logits)[0], dtype="int32"), logits
