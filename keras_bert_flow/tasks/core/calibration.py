"""Calibrate logits on held-out rows: one temperature and, where the shares of classes differ, a bias for each class."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

BINS = 15  # of equal width, as Guo et al.
LEAST_ROWS = 30  # with fewer, an error says little about the next text
LEAST, MOST = 0.05, 20.0  # temperatures
BIAS_DEVIATION = 1.0  # of the normal prior of the biases, nats: a class that no row has is not ruled out


@dataclass(frozen=True)
class Calibration:
    """A temperature and the biases of the classes, and what they do to the rows that they were chosen on.

    Attributes:
        temperature: what logits are divided by; 1 leaves them as they are.
        rows: number of rows that it was chosen on.
        error_before, error_after: expected calibration error, from 0 to 1.
        loss_before, loss_after: mean cross-entropy, nats.
        biases: what is added to the divided logits, one number for each class; empty if there are none.
    """

    temperature: float
    rows: int
    error_before: float
    error_after: float
    loss_before: float
    loss_after: float
    biases: tuple[float, ...] = ()

    def apply(self, logits: np.ndarray) -> np.ndarray:
        """Return the calibrated logits, (rows, classes)."""
        return np.asarray(logits, np.float64) / self.temperature + (np.asarray(self.biases) if self.biases else 0.0)


def calibrate(logits: np.ndarray, labels: np.ndarray, with_biases: bool = False) -> Calibration:
    """Choose the temperature with the least cross-entropy, and with it the biases of the classes if asked for.

    It stays 1, and the biases 0, with fewer than `LEAST_ROWS` rows. It is at least 1 if every answer is right: the loss
    would be least at a temperature of 0, with probabilities of 1 for whatever comes. A temperature changes no answer;
    biases do: they correct for shares of classes that are not those of the training rows.

    Args:
        logits: (rows, classes).
        labels: class ids, (rows,).
    Source: Guo et al. 2017, section 4.2, arXiv:1706.04599. The biases: Alexandari et al. 2020, bias-corrected
        temperature scaling, arXiv:1901.06852; the prior that keeps them finite is ours.
    """
    logits = np.asarray(logits, np.float64)
    classes = logits.shape[1] if with_biases else 0
    temperature, biases = 1.0, np.zeros(classes)
    if len(logits) >= LEAST_ROWS:
        is_all_right = bool((logits.argmax(axis=1) == labels).all())
        bounds = [tuple(np.log((1.0 if is_all_right else LEAST, MOST))), *[(None, None)] * classes]
        options = {"maxiter": 1000, "ftol": 1e-14, "gtol": 1e-9}
        found = minimize(
            _loss_and_gradient,
            np.zeros(1 + classes),
            (logits, labels),
            "L-BFGS-B",
            True,
            bounds=bounds,
            options=options,
        )
        temperature, biases = float(np.exp(found.x[0])), found.x[1:]
    scaled = logits / temperature + (biases if classes else 0.0)
    errors = [calibration_error(softmax(each, axis=1), labels) for each in (logits, scaled)]
    rows = np.arange(len(labels))
    losses = [float(-log_softmax(each, axis=1)[rows, labels].mean()) for each in (logits, scaled)]
    (error, new_error), (loss, new_loss) = errors, losses
    return Calibration(temperature, len(logits), error, new_error, loss, new_loss, tuple(map(float, biases)))


def _loss_and_gradient(parameters: np.ndarray, logits: np.ndarray, labels: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean cross-entropy with the prior of the biases, and its gradient by log temperature and biases."""
    rows, biases = np.arange(len(labels)), parameters[1:]
    scaled = logits / np.exp(parameters[0])
    shares = log_softmax(scaled + biases if len(biases) else scaled, axis=1)
    by_logit = np.exp(shares)
    by_logit[rows, labels] -= 1
    strength = 1 / (BIAS_DEVIATION**2 * len(labels))
    by_biases = by_logit.mean(axis=0) + strength * biases if len(biases) else []
    loss = -shares[rows, labels].mean() + strength * np.sum(biases**2) / 2
    return loss, np.array([-(by_logit * scaled).sum() / len(labels), *by_biases])


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
