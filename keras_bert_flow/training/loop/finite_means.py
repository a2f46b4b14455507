"""Keep the means of a log to the steps whose numbers are finite."""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops


def keep_metrics_finite(model, is_everywhere: Callable[[Any], Any] = lambda is_finite: is_finite) -> None:
    """Let the metrics of a compiled model pass over a step that would make them NaN or infinite.

    A mean would stay NaN to its end, though the step was left out of the training. Keras makes the means of single
    losses when it first sees outputs, so it is shown some.

    Args:
        is_everywhere: says of what holds here whether it holds in all processes: a step that is left out has no numbers
            in any of them.
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
        for variable in after:  # one that was made just now began at 0
            value = before.get(variable.path, ops.zeros_like(variable.value))
            variable.assign(ops.where(is_finite, variable.value, value))

    metric.update_state = update_state
