"""Fit a linear head to text vectors, with regularisation chosen by cross-validation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import log_expit, log_softmax, logsumexp
from sklearn.linear_model import LogisticRegression, Ridge

from keras_bert_flow.tasks.baselines.word_baseline import assign_folds, bounded_fits, limit_vectors

# C of logistic regression, or 1 / alpha of ridge regression, for vectors of mean squared norm 1; weakest last.
STRENGTHS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1_000.0, 10_000.0)  # finer where a few hundred rows choose
FIXED_STRENGTH = 1.0  # with too few rows to choose: prior and data weigh about the same
FOLDS = 3
LEAST_ROWS = 2 * FOLDS
MOST_ROWS = 20_000  # enough for a few hundred weights per output; the vectors take 60 MB at hidden size 768
MOST_CHOOSING_ROWS = 5_000  # for cross-validation, which fits 27 heads
TOLERANCE, MOST_ITERATIONS = 1e-8, 1_000  # of L-BFGS; at 1e-6 probabilities are off by up to 7e-5
CHOOSING_TOLERANCE = 1e-4  # strengths are a factor of three apart, and this takes a fifth of the time

HELD_OUT = 5  # every so many rows are held out to check a head
MOVED = 0.1  # by which part of their length vectors move under dropout and in the first steps of training
MOST_LOGIT = 100.0  # of a kernel times a vector of the length of these, so that such a move changes it by 10 at most
CHOOSING_FITS = 6  # that the cross-validation costs as much as: 27, at the tolerance for it

Head = tuple[np.ndarray, np.ndarray]  # kernel, (hidden, outputs); bias, (outputs,)


@bounded_fits()
def fit_head(kind: str, vectors: np.ndarray, labels: np.ndarray, outputs: int, rng: np.random.Generator) -> Head:
    """Fit the kernel and bias of a dense layer to labelled vectors.

    Classes are fitted by multinomial logistic regression; if only two occur, scikit-learn's one logit becomes two, plus
    and minus half of it, with the same softmax. Labels are fitted by one logistic regression each, numbers by ridge
    regression. The strength with the least loss on held-out rows is chosen in 3 stratified folds, or 2 if a class has
    only 2 rows; ties go to the strongest regularisation. Classes of one row are not considered for this. The strength
    is `FIXED_STRENGTH` with fewer than `LEAST_ROWS` rows, or fewer than two classes of at least two rows.
    A class or label that no row has, and a label that every row has, cannot be learnt: its weights are 0, and its bias
    is the log-odds of its count with half a row added to either side; for a class, relative to the mean log-sum-exp of
    all others.

    Args:
        kind: classification, multi_label or regression.
        vectors: float, (rows, hidden).
        labels: by kind, int (rows,), 0.0 and 1.0 (rows, outputs), or float (rows,).
        outputs: number of classes or labels, or 1.
        rng: assigns rows to folds.
    Returns:
        float64 kernel, (hidden, outputs), and bias, (outputs,).
    Source: Pedregosa et al. 2011, arXiv:1201.0490, for the solvers; Haldane 1956 for the half row.
    """
    # The optimum does not depend on the origin, but the solver's steps do; unit scale gives `STRENGTHS` a meaning.
    vectors = np.asarray(vectors, np.float64)
    center = vectors.mean(axis=0)
    scale = _spread(vectors) or 1.0
    scaled = (vectors - center) / scale
    strength = choose_strength(kind, scaled, labels, outputs, rng)
    kernel, bias = FITS[kind](scaled, labels, outputs, strength, TOLERANCE)
    kernel = kernel / scale
    return kernel, bias - center @ kernel


@dataclass(frozen=True)
class Start:
    """A fitted head, or the reason why a new one is the better start.

    Attributes:
        head: None if training should start with a new head.
        reason: a sentence; empty if the head was fitted as asked for.
    """

    head: Head | None
    reason: str = ""


@bounded_fits()
def fit_start(kind: str, vectors: np.ndarray, labels: np.ndarray, outputs: int, rng: np.random.Generator) -> Start:
    """Fit a head for training to start from, as `fit_head` does, and check it on rows that it was not fitted on.

    Vectors that hardly differ, such as those of a barely trained encoder, are separated by large kernels, whose logits
    explode as soon as dropout or a step moves the vectors. So each fifth row is held out and moved at random by a tenth
    of the length of the vectors. The head has the weakest regularisation, from the chosen one on, with which the loss
    of these rows is below that of a new head, which knows nothing: all classes or both answers equally probable, the
    number 0. If there is none, or too many classes for the memory and time, the new head is kept. So it is if a tenth
    of the length is more than the distance of the vectors from their mean: a step moves all of them alike, and further
    than they are apart. (A [CLS] vector from random weights is 110 to 140 times as long as that distance, one of
    pre-trained weights 1.8, a mean of tokens 1.8 to 3.7.)

    Args: as for `fit_head`.
    """
    limits = limit_vectors(vectors.shape[1], outputs, MOST_ITERATIONS, CHOOSING_FITS)
    if not limits.rows:
        return Start(None, f"{outputs:,} classes are too many for a linear probe, so the head starts anew.")
    fitted = spread_rows(len(labels), limits.rows)
    is_less = limits.is_less or len(fitted) < len(labels)
    vectors, labels = np.asarray(vectors[fitted], np.float64), labels[fitted]
    center, scale = vectors.mean(axis=0), _spread(vectors) or 1.0
    scaled = (vectors - center) / scale
    few = spread_rows(len(labels), limits.choosing_rows)
    strength = choose_strength(kind, scaled[few], labels[few], outputs, rng) if len(few) else FIXED_STRENGTH
    is_held_out = assign_folds(labels, rng, HELD_OUT) == 0
    if len(labels) < 2 * HELD_OUT:
        is_held_out[:] = False
    tried = ~is_held_out
    checked = is_held_out if is_held_out.any() else tried
    length = float(np.sqrt(np.mean(np.sum(vectors**2, axis=1)))) / scale
    if MOVED * length > 1:
        return Start(None, "the vectors of the texts are nearly equal, so the head starts anew.")
    moves = rng.normal(0, MOVED * length / np.sqrt(vectors.shape[1]), scaled[checked].shape)
    usual = _sum_losses(kind, np.zeros((checked.sum(), outputs)), labels[checked]) / checked.sum()  # of a new head
    most = MOST_LOGIT * (float(np.std(labels)) if kind == "regression" else 1.0)
    for candidate in [each for each in reversed(STRENGTHS) if each <= strength]:
        kernel, bias = FITS[kind](scaled[tried], labels[tried], outputs, candidate, TOLERANCE, limits.iterations)
        loss = _sum_losses(kind, (scaled[checked] + moves) @ kernel + bias, labels[checked]) / checked.sum()
        if loss < usual and np.linalg.norm(kernel, axis=0).max() * length <= most:
            kernel, bias = FITS[kind](scaled, labels, outputs, candidate, TOLERANCE, limits.iterations)
            kernel = kernel / scale
            less = f"the linear probe for {outputs:,} classes is fitted on {len(labels):,} rows in few steps."
            return Start((kernel, bias - center @ kernel), less if is_less else "")
    return Start(None, "the linear probe has no lower loss than a new head on held-out rows, so the head starts anew.")


def add_directions(vectors: np.ndarray, directions: np.ndarray) -> np.ndarray:
    """Return the matrix that maps vectors to themselves, concatenated with their products with each class direction.

    Both parts are scaled to a mean squared distance of 1 from their mean over these vectors. A head fitted to the
    mapped vectors is regularised less along the directions; the matrix times the kernel of that head is a kernel for
    the original vectors.

    Args:
        vectors: float, (rows, hidden).
        directions: float, (hidden, classes). Their mean is subtracted.
    Returns:
        float, (hidden, hidden + classes).
    """
    maps = (np.eye(len(directions)), directions - directions.mean(axis=1, keepdims=True))
    return np.concatenate([part / (_spread(vectors @ part) or 1.0) for part in maps], axis=1)


def _spread(vectors: np.ndarray) -> float:
    """Return the root mean squared distance of vectors, (rows, columns), from their mean."""
    return float(np.sqrt(np.mean(np.sum((vectors - vectors.mean(axis=0)) ** 2, axis=1))))


@bounded_fits()
def choose_strength(
    kind: str, vectors: np.ndarray, labels: np.ndarray, outputs: int, rng: np.random.Generator
) -> float:
    """Return the strength with the least mean loss on held-out rows; arguments as for `fit_head`."""
    chosen = spread_rows(len(labels), MOST_CHOOSING_ROWS)
    vectors, labels = vectors[chosen], labels[chosen]
    count = FOLDS if len(labels) >= LEAST_ROWS else 0
    if count and kind == "classification":
        rows = np.bincount(labels)  # of each class
        rows = rows[rows > 1]
        count = min(FOLDS, int(rows.min())) if len(rows) > 1 else 0
    if count < 2:
        return FIXED_STRENGTH
    folds, losses = assign_folds(labels, rng, count), np.zeros(len(STRENGTHS))
    for held_out in (folds == fold for fold in range(count)):
        for place, strength in enumerate(STRENGTHS):
            kernel, bias = FITS[kind](vectors[~held_out], labels[~held_out], outputs, strength, CHOOSING_TOLERANCE)
            losses[place] += _sum_losses(kind, vectors[held_out] @ kernel + bias, labels[held_out])
    return STRENGTHS[int(losses.argmin())]  # the first of ties


def spread_rows(rows: int, most: int) -> np.ndarray:
    """Return at most `most` evenly spaced row indices, so that a table sorted by class keeps its class shares."""
    return np.arange(rows) if rows <= most else np.arange(most) * rows // most


def _sum_losses(kind: str, logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the loss that the model is trained on, summed over rows."""
    if kind == "classification":
        return -log_softmax(logits, axis=1)[np.arange(len(labels)), labels].sum()
    if kind == "multi_label":
        return -(labels * log_expit(logits) + (1 - labels) * log_expit(-logits)).sum()
    return np.sum((logits[:, 0] - labels) ** 2)


def _fit_classes(
    vectors: np.ndarray,
    labels: np.ndarray,
    outputs: int,
    strength: float,
    tolerance: float,
    iterations: int = MOST_ITERATIONS,
) -> Head:
    counts = np.bincount(labels, minlength=outputs)
    seen = np.flatnonzero(counts)
    kernel, bias = np.zeros((vectors.shape[1], outputs)), np.zeros(outputs)
    if len(seen) > 1:
        model = LogisticRegression(C=strength, tol=tolerance, max_iter=iterations).fit(vectors, labels)
        weights, offsets = model.coef_, model.intercept_
        if len(seen) == 2:
            weights, offsets = (np.concatenate([-half, half]) for half in (weights / 2, offsets / 2))
        kernel[:, seen], bias[seen] = weights.T, offsets
    others = np.mean(logsumexp(vectors @ kernel[:, seen] + bias[seen], axis=1))
    bias[counts == 0] = others + _log_odds(0, len(labels))
    return kernel, bias


def _fit_labels(
    vectors: np.ndarray,
    labels: np.ndarray,
    outputs: int,
    strength: float,
    tolerance: float,
    iterations: int = MOST_ITERATIONS,
) -> Head:
    kernel, bias = np.zeros((vectors.shape[1], outputs)), np.zeros(outputs)
    for place, marks in enumerate(labels.T > 0):
        if marks.all() or not marks.any():
            bias[place] = _log_odds(marks.sum(), len(marks))
        else:
            model = LogisticRegression(C=strength, tol=tolerance, max_iter=iterations).fit(vectors, marks)
            kernel[:, place], bias[place] = model.coef_[0], model.intercept_[0]
    return kernel, bias


def _fit_numbers(vectors: np.ndarray, labels: np.ndarray, outputs: int, strength: float, *solver: Any) -> Head:
    model = Ridge(alpha=1 / strength, solver="cholesky").fit(vectors, labels.astype(np.float64))
    return model.coef_[:, None], np.array([model.intercept_])


def _log_odds(count: int, rows: int) -> float:
    return float(np.log((count + 0.5) / (rows - count + 0.5)))


FITS: dict[str, Callable[..., Head]] = {
    "classification": _fit_classes,
    "multi_label": _fit_labels,
    "regression": _fit_numbers,
}
