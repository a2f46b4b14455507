"""Bootstrap interval of a score: how much it varies with other examples of the same kind."""

import numpy as np

from keras_bert_flow.tasks.core.task import Measure

RESAMPLES = 1000
DRAWN = 10_000_000  # most examples of all resamples together: 1,000 resamples of 10,000 take seconds
LEAST_RESAMPLES = 100  # two or three beyond each end of the interval
LEVEL = 0.95


def bootstrap_interval(measure: Measure, count: int, seed: int = 1) -> dict[str, float | int]:
    """Return the bootstrap interval of a score: examples are drawn with replacement many times, and each draw measured.

    The interval covers the variation over examples, not over seeds of the fine-tuning. Examples are drawn
    independently; if several are of one text, the interval is too narrow.

    Args:
        measure: the score as a function of the chosen examples.
        count: number of examples.
        seed: seed of the draws.
    Returns:
        low and high, the bounds of the middle 95 % of the draws; level, 0.95; resamples, the number of draws: 1,000, or
        fewer for more than 10,000 examples.
    Source: Efron 1979, 10.1214/aos/1176344552; the percentile interval, as in `scipy.stats.bootstrap`.
    """
    rng = np.random.default_rng(seed)
    resamples = max(LEAST_RESAMPLES, min(RESAMPLES, DRAWN // count))
    scores = [measure(rng.integers(count, size=count)) for _ in range(resamples)]
    low, high = np.quantile(scores, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return {"low": low, "high": high, "level": LEVEL, "resamples": resamples}
