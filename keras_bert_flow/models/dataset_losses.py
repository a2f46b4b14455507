"""Losses of a whole dataset: means over rows or tokens by their weights, not over batches."""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from keras_bert_flow.models.losses import TagLoss, weigh_tags

MEANS = ("mean_with_sample_weight", "sum")  # reductions of losses whose mean over a dataset is known


class DatasetLosses:
    """The means of the losses of a model over all batches of an evaluation.

    Keras averages the losses of batches by their numbers of rows, which counts filler rows of weight 0, and tokens in
    a batch with few of them more than others.

    Args:
        losses: output → loss; one output may have the name None.
        weights: output → factor of its mean in the total.
    """

    def __init__(self, losses: Mapping[str | None, keras.losses.Loss], weights: Mapping[str | None, float]):
        self._losses = {name: _without_reduction(loss) for name, loss in losses.items()}
        self._weights = weights

    @classmethod
    def make(cls, losses: Any, weights: Any) -> "DatasetLosses | None":
        """Return the losses of a model, or None if the mean of one over a dataset is not defined."""
        losses = losses if isinstance(losses, Mapping) else {None: losses}
        if not all(_has_mean(loss) for loss in losses.values()):
            return None
        if weights is not None and not isinstance(weights, Mapping):
            return None
        return cls(losses, {name: 1.0 if weights is None else weights.get(name, 1.0) for name in losses})

    def are_built(self, metrics: list[Any]) -> bool:
        """Return whether the metrics of a model include those of single losses, which Keras creates late."""
        names = {metric.name for metric in metrics}
        return len(self._losses) == 1 or all(f"{name}_loss" in names for name in self._losses)

    def update(self, metrics: list[Any], y: Any, y_pred: Any, sample_weight: Any) -> None:
        """Add a batch to the metrics of a model: `loss`, and of several outputs `OUTPUT_loss` each."""
        means = {metric.name: metric for metric in metrics}
        total: Any = 0.0
        for name, loss in self._losses.items():
            labels, outputs, weights = (
                each.get(name) if isinstance(each, Mapping) and name is not None else each
                for each in (y, y_pred, sample_weight)
            )
            value, weight = _measure(loss, labels, outputs, weights)
            if len(self._losses) == 1:
                means["loss"].update_state(self._weights[name] * value, sample_weight=weight)
                return
            mean = means[f"{name}_loss"]
            mean.update_state(value, sample_weight=weight)
            total = total + self._weights[name] * mean.result()
        means["loss"].reset_state()
        means["loss"].update_state(total)


def _has_mean(loss: Any) -> bool:
    """Return whether a loss is one of this package or of Keras, and a mean or a sum; others divide in other ways."""
    is_known = type(loss).__module__.startswith(
        ("keras_bert_flow.models.", keras.losses.Loss.__module__.partition(".")[0] + ".")
    )
    return is_known and isinstance(loss, keras.losses.Loss) and loss.reduction in MEANS


def _without_reduction(loss: keras.losses.Loss) -> keras.losses.Loss:
    return type(loss).from_config(loss.get_config() | {"reduction": "none"})


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
