"""Exclude steps with NaN or infinity from the mean metrics."""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops


def keep_metrics_finite(model, is_everywhere: Callable[[Any], Any] = lambda is_finite: is_finite) -> None:
    """Make the metrics of a compiled model skip a step that would make them NaN or infinite.

    Otherwise a mean would stay NaN for the rest of the interval, although training skipped the step. Keras creates the
    metrics of single losses when it first gets outputs, so it is called with dummy ones.

    Args:
        is_everywhere: returns whether a condition holds in all processes: a step skipped in one is skipped in all.
    """
    outputs = {name: np.zeros([size or 1 for size in output.shape], "float32") for name, output in model.output.items()}
    labels = {name: np.zeros(output.shape[:-1], "int32") for name, output in outputs.items()}
    weights = {name: np.ones(label.shape, "float32") for name, label in labels.items()}
    model.compute_loss(y=labels, y_pred=outputs, sample_weight=weights)
    model.reset_metrics()
    for metric in model.metrics:
        _keep_finite(metric, is_everywhere)


def _keep_finite(metric, is_everywhere) -> None:
    update = metric.update_state

    def update_state(*arguments, **named):
        before = {variable.path: ops.copy(variable.value) for variable in metric.variables}
        update(*arguments, **named)
        after = metric.variables
        is_finite = is_everywhere(ops.all(ops.stack([ops.isfinite(variable.value) for variable in after])))
        for variable in after:  # a newly created one started at 0
            value = before.get(variable.path, ops.zeros_like(variable.value))
            variable.assign(ops.where(is_finite, variable.value, value))

    metric.update_state = update_state
