"""Bounds on the memory and time of linear models with many classes, by counted work.

The bounds depend on the data alone and not on the speed of a machine, so equal inputs give equal results.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from sklearn.exceptions import ConvergenceWarning
from threadpoolctl import threadpool_limits

from keras_bert_flow.tasks.core.metrics import many_classes
from keras_bert_flow.tasks.core.texts import TextExample

MOST_WEIGHTS = 5_000_000  # features times classes: L-BFGS keeps about 24 float64 matrices of that size, 1 GB
LEAST_FEATURES = 1_000  # with fewer words a baseline is none
LEAST_ROWS = 3  # per class
MOST_SPARSE_WORK = 3e10  # multiplications, of which one core does 3e8 to 7e8 a second; most fits end after half of them
MOST_DENSE_WORK = 1e12  # of dense matrices, 2e10 a second; the same
MOST_LOGITS = 2_000_000  # rows times classes that are decoded to choose by
FEW_ITERATIONS = 50  # where all of them would leave too few rows
SOFTMAX = 20  # multiplications that cost as much as an exponential
SAMPLE = 1_000  # rows to count words in


@dataclass(frozen=True)
class Limits:
    """What a fit may use.

    Attributes:
        features: most columns.
        rows: most rows to fit on; 0 if the model has to be left out.
        choosing_rows: most rows of the cross-validation; 0 if there is none.
        iterations: most iterations of the solver.
        is_less: whether the solver is stopped early or has fewer columns than it could use.
    """

    features: int
    rows: int
    choosing_rows: int
    iterations: int
    is_less: bool = False


def limit_words(examples: Sequence[TextExample], outputs: int, features: int, iterations: int, fits: int) -> Limits:
    """Return the limits of a linear model on word n-grams.

    Args:
        examples: the training table.
        outputs: number of weights per feature: of classes, or 1.
        features, iterations: the most that the model needs.
        fits: number of fits of the cross-validation, in rows of the whole.
    """
    sample = list(islice(examples, SAMPLE))
    words = sum(len(f"{example.text} {example.text_pair or ''}".split()) for example in sample) / max(len(sample), 1)
    parts = 4 if sample and sample[0].text_pair is not None else 2  # of bigrams and single words, and of both texts
    features = min(features, MOST_WEIGHTS // outputs)
    if features < LEAST_FEATURES:
        return Limits(features, 0, 0, iterations)
    return _limit_rows(MOST_SPARSE_WORK, (parts * words + SOFTMAX) * outputs, outputs, features, iterations, fits)


def limit_vectors(hidden_dim: int, outputs: int, iterations: int, fits: int) -> Limits:
    """Return the limits of a linear head on dense vectors; arguments as for `limit_words`."""
    if hidden_dim * outputs > MOST_WEIGHTS:
        return Limits(hidden_dim, 0, 0, iterations)
    return _limit_rows(MOST_DENSE_WORK, (hidden_dim + SOFTMAX) * outputs, outputs, hidden_dim, iterations, fits)


def _limit_rows(work: float, row_work: float, outputs: int, features: int, iterations: int, fits: int) -> Limits:
    enough, needed = LEAST_ROWS * outputs, iterations
    choosing_rows = int(min(work / (row_work * iterations * fits), MOST_LOGITS / outputs))
    rows = int(work / (row_work * iterations))
    if rows < max(enough, choosing_rows):
        iterations = FEW_ITERATIONS
        rows = int(work / (row_work * iterations))
    choosing_rows *= choosing_rows >= enough
    return Limits(features, rows * (rows >= enough), choosing_rows, iterations, iterations < needed)


@contextmanager
def bounded_fits() -> Iterator[None]:
    """Fit on one thread, and without the warnings of scikit-learn that do not concern a user.

    On several threads, BLAS waits for cores that the threads of Keras hold: fits of a quarter of a second took ten.
    """
    with threadpool_limits(1), many_classes(), warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a fit that is stopped early is close enough
        yield
