"""Compute the training loss from model outputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy  # its submodules are loaded when they are used

from keras_bert_flow.tasks.core.features import IGNORED, Features


def mean_loss(outputs: Mapping[str, Any], features: Features) -> float:
    """Return the mean loss over all labels, averaged over the outputs of the model.

    Integer labels, per row or per token, have the cross-entropy in nats; (rows, labels) of 0.0 and 1.0 the binary
    cross-entropy; one number per row the squared error.

    Args:
        outputs: see `Task.decode`.
        features: rows with labels.
    """
    return float(np.mean([_mean_loss(outputs[name], labels) for name, labels in features.labels.items()]))


def _mean_loss(answers: Any, labels: Any) -> float:
    if not isinstance(labels, np.ndarray):  # labels per token
        tokens, answers = np.concatenate(labels), np.concatenate(answers)
        answers, labels = answers[tokens != IGNORED], tokens[tokens != IGNORED]
    if np.issubdtype(labels.dtype, np.integer):
        return float(np.mean([_cross_entropy(row, label) for row, label in zip(answers, labels, strict=True)]))
    answers = np.asarray(answers, np.float64).reshape(labels.shape)
    if labels.ndim == 1:
        return float(np.mean((answers - labels) ** 2))
    return float(-np.mean(labels * scipy.special.log_expit(answers) + (1 - labels) * scipy.special.log_expit(-answers)))


def _cross_entropy(logits: np.ndarray, label: int) -> float:
    logits = np.asarray(logits, np.float64)
    return scipy.special.logsumexp(logits) - logits[label]
