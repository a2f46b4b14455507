"""Detect runs that were still improving when they ended, so that their scores do not stand for the model's best."""

import math
from collections.abc import Sequence

CORRELATIONS = ("pearson", "spearman", "matthews")


def is_improving(scores: Sequence[float], metric: str, count: int) -> bool | None:
    """Return whether the last third of a run's epochs gained more than one standard error of a dev score.

    The best score of the last third is compared with the best of all epochs before: a single epoch varies by chance,
    and a run may publish its best one. One standard error is used, since both are measured on the same examples and
    most of the noise cancels out: a gain of that size is seldom chance, while a run that ends level passes. A learning
    rate that decays to 0 flattens every run at its end, so a third of the epochs is considered instead of only the
    last.

    Args:
        scores: dev scores, one per evaluation, in order; higher is better.
        metric: name of the scores.
        count: number of dev examples.
    Returns:
        None with fewer than two evaluations.
    """
    if len(scores) < 2:
        return None
    start = math.ceil(2 * len(scores) / 3) if len(scores) > 2 else 1
    last, before = max(scores[start:]), max(scores[:start])
    return last - before > score_error(before, metric, count)


def score_error(score: float, metric: str, count: int) -> float:
    """Return the approximate standard error of a score: of a share, as which F1 is treated, or of a correlation."""
    if metric in CORRELATIONS:
        return (1 - score**2) / math.sqrt(max(1, count - 1))
    return math.sqrt(max(0.0, score * (1 - score)) / count)
