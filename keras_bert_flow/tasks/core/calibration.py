"""Temperature scaling: divide logits by one number, so that probabilities agree with the shares of right answers."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax

BINS = 15  # of equal width, as Guo et al.
LEAST_ROWS = 30  # with fewer, an error says little about the next text
LEAST, MOST = 0.05, 20.0  # temperatures


@dataclass(frozen=True)
class Calibration:
    """A temperature, and what it does to the rows that it was chosen on.

    Attributes:
        temperature: what logits are divided by; 1 leaves them as they are.
        rows: number of rows that it was chosen on.
        error_before, error_after: expected calibration error, from 0 to 1.
        loss_before, loss_after: mean cross-entropy, nats.
    """

    temperature: float
    rows: int
    error_before: float
    error_after: float
    loss_before: float
    loss_after: float


def calibrate(logits: np.ndarray, labels: np.ndarray) -> Calibration:
    """Choose the temperature with the least cross-entropy.

    It stays 1 with fewer than `LEAST_ROWS` rows, and is at least 1 if every answer is right: the loss would be least at
    a temperature of 0, with probabilities of 1 for whatever comes.

    Args:
        logits: (rows, classes).
        labels: class ids, (rows,).
    Source: Guo et al. 2017, section 4.2, arXiv:1706.04599.
    """
    logits = np.asarray(logits, np.float64)
    temperature = 1.0
    if len(logits) >= LEAST_ROWS:
        is_all_right = bool((logits.argmax(axis=1) == labels).all())
        bounds = np.log((1.0 if is_all_right else LEAST, MOST))
        found = minimize_scalar(lambda log: _loss(logits / np.exp(log), labels), bounds=bounds, method="bounded")
        temperature = float(np.exp(found.x))
    scaled = logits / temperature
    errors = (calibration_error(softmax(each, axis=1), labels) for each in (logits, scaled))
    losses = (_loss(each, labels) for each in (logits, scaled))
    return Calibration(temperature, len(logits), *errors, *losses)


def calibration_error(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the expected calibration error: |share of right answers - mean probability|, weighted over bins.

    Args:
        probabilities: of all classes, (rows, classes). The highest of a row determines its bin of `BINS`.
        labels: class ids, (rows,).
    Source: Guo et al. 2017, equation 3; Naeini et al. 2015.
    """
    highest = probabilities.max(axis=1)
    is_right = probabilities.argmax(axis=1) == labels
    bins = np.minimum((highest * BINS).astype(int), BINS - 1)
    sums = np.bincount(bins, highest, BINS) - np.bincount(bins, is_right, BINS)
    return float(np.abs(sums).sum() / len(labels))


def _loss(logits: np.ndarray, labels: np.ndarray) -> float:
    return float(-log_softmax(logits, axis=1)[np.arange(len(labels)), labels].mean())
