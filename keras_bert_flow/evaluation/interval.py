"""Say how far a score moves when it is measured on other examples of the same kind: the bootstrap."""

import numpy as np

from keras_bert_flow.tasks.core.task import Measure

RESAMPLES = 1000
DRAWN = 10_000_000  # examples of all resamples together, at most: 1,000 resamples of 10,000 take seconds
LEAST_RESAMPLES = 100  # two or three beyond each end of the interval
LEVEL = 0.95


def bootstrap_interval(measure: Measure, count: int, seed: int = 1) -> dict[str, float | int]:
    """Draw as many examples as there are, with replacement, many times, and measure each draw.

    The interval holds what comes of other examples, not of other seeds of the fine-tuning. Examples are drawn one by
    one, as if they had nothing to do with each other; where several are of one text it is too narrow.

    Args:
        measure: the score as a function of the examples that count.
        count: how many examples there are.
        seed: of the draws.
    Returns:
        low and high, between which lies the middle 95 % of the draws; level, 0.95; resamples, how many draws: 1,000, or
        fewer of more than 10,000 examples.
    Source: Efron 1979, 10.1214/aos/1176344552; the percentile interval, as `scipy.stats.bootstrap` has it.
    """
    rng = np.random.default_rng(seed)
    resamples = max(LEAST_RESAMPLES, min(RESAMPLES, DRAWN // count))
    scores = [measure(rng.integers(count, size=count)) for _ in range(resamples)]
    low, high = np.quantile(scores, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return {"low": low, "high": high, "level": LEVEL, "resamples": resamples}
