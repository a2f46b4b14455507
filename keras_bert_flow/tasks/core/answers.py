"""Convert model outputs to one row of logits per example, in the order of the examples."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import scipy  # its submodules are loaded when they are used

from keras_bert_flow.tasks.core.features import Features


def logits_of(outputs: Mapping[str, Any], features: Features, width: int) -> np.ndarray:
    """Return the logits of a model with one output row per example.

    Args:
        width: logits per row. If 1, `outputs` may also be (rows,).
    Returns:
        float64, (examples, width).
    Raises:
        ValueError: the output has another shape, or is not finite.
    """
    logits = np.asarray(outputs["logits"], dtype=np.float64)
    received = logits.shape
    if width == 1 and logits.ndim == 1:
        logits = logits[:, np.newaxis]
    if logits.shape != (len(features), width):
        raise ValueError(
            f"`logits` must be (rows, {width}). Received: {received} for {len(features)} rows. "
            "Predict every row with the model of this task."
        )
    if not np.isfinite(logits).all():
        raise ValueError(
            "`logits` must be finite. Received: nan or infinity: the fine-tuning diverged. Lower its learning rate."
        )
    ordered = np.empty_like(logits)
    ordered[features.examples] = logits
    return ordered


def probabilities_of(outputs: Mapping[str, Any], features: Features, width: int) -> np.ndarray:
    """Return the softmax of the logits, float64, (examples, width)."""
    return scipy.special.softmax(logits_of(outputs, features, width), axis=1)


def token_logits_of(outputs: Mapping[str, Any], name: str, features: Features) -> list[np.ndarray]:
    """Return the logits of a model with one logit per token, float64, (length,) each.

    Raises:
        ValueError: the rows or their lengths differ from those of the features, or a logit is not finite.
    """
    logits = [np.asarray(row, dtype=np.float64) for row in outputs[name]]
    shapes, expected = [row.shape for row in logits], [(len(row),) for row in features.token_ids]
    if shapes != expected:
        raise ValueError(
            f"The output {name!r} must have one logit for each token of each row, without padding. Received: "
            f"{len(shapes)} rows for {len(expected)}, or rows of other lengths. Cut each row to its length."
        )
    for number, row in enumerate(logits):
        if not np.isfinite(row).all():
            raise ValueError(
                f"The output {name!r} must be finite numbers. Received: nan or inf in row {number}. "
                "The training has diverged: lower its learning rate."
            )
    return logits


def name_shares(names: Sequence[str], shares: np.ndarray) -> dict[str, float]:
    """Return a dict of name → share, in plain Python values."""
    return dict(zip(names, shares.tolist(), strict=True))
