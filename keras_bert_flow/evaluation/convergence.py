"""Tell whether a run was still improving when it ended, so that its score is not taken for what the model can do."""

import math
from collections.abc import Sequence

CORRELATIONS = ("pearson", "spearman", "matthews")


def is_improving(scores: Sequence[float], metric: str, count: int) -> bool | None:
    """Tell whether the last third of a run's epochs has gained more than one standard error of a dev score.

    The best score of the last third is compared with the best of all epochs before. Best with best, as a single epoch
    moves by chance, and as a run may publish its best. One standard error, since both are measured on the same examples
    and most of its noise cancels out: a gain that size is seldom chance, while a run that ends level passes. A learning
    rate that falls to 0 flattens every run at its end, so a third of the epochs is looked at, not the last alone.

    Args:
        scores: of the dev set, one per evaluation, in their order; higher is better.
        metric: their name.
        count: examples of the dev set.
    Returns:
        None where fewer than two evaluations show nothing.
    """
    if len(scores) < 2:
        return None
    start = math.ceil(2 * len(scores) / 3) if len(scores) > 2 else 1
    last, before = max(scores[start:]), max(scores[:start])
    return last - before > score_error(before, metric, count)


def score_error(score: float, metric: str, count: int) -> float:
    """Return about one standard error of a score: of a share, which F1 is taken for, or of a correlation."""
    if metric in CORRELATIONS:
        return (1 - score**2) / math.sqrt(max(1, count - 1))
    return math.sqrt(max(0.0, score * (1 - score)) / count)
