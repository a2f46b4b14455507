"""Compare the pre-trained runs with every other model, and test whether chance explains the difference."""

from collections.abc import Mapping, Sequence

import numpy as np

from keras_bert_flow.tasks.core.task import Measure

RESAMPLES = 200  # the standard deviation of this many draws is known to 5 %
LEAST_RESAMPLES = 100
DRAWN = 20_000_000  # most examples of all draws of all runs together
ERRORS = 2  # standard errors within which a difference is attributed to chance


def compare_models(
    measures: Mapping[str, Sequence[Measure]],
    seeds: Mapping[str, Sequence[int | None]],
    count: int,
    main: str,
    seed: int = 1,
) -> dict[str, dict[str, float | int | bool]]:
    """Return the difference in mean score between the runs of `main` and each other model, with its standard error.

    The variance of a difference is the sum of two parts. Examples: all runs are measured on the same examples, drawn
    with replacement many times (a paired bootstrap), so what makes an example hard for both cancels out. Seeds: the
    variance of the difference between runs of one seed, divided by the number of seeds; if the seeds differ, or only
    one side has several, the variance of each side. A side with a single run has no such part, which makes the error
    too small.

    Args:
        measures: model → the score of each run as a function of the chosen examples.
        seeds: model → the seed of each run.
        count: number of examples.
        main: the model that is compared with the others.
        seed: seed of the draws.
    Returns:
        Other model → difference; standard_error; beyond_chance, whether the difference is more than two standard
        errors; resamples.
    """
    rng = np.random.default_rng(seed)
    runs = sum(map(len, measures.values()))
    resamples = max(LEAST_RESAMPLES, min(RESAMPLES, DRAWN // (count * runs)))
    draws: dict[str, list[float]] = {model: [] for model in measures}
    for _ in range(resamples):
        chosen = rng.integers(count, size=count)
        for model, of_model in measures.items():
            draws[model].append(float(np.mean([measure(chosen) for measure in of_model])))
    everything = np.arange(count)
    scores = {model: np.array([measure(everything) for measure in of_model]) for model, of_model in measures.items()}
    compared = {}
    for model in measures:
        if model != main:
            is_paired = list(seeds[model]) == list(seeds[main])
            variance = np.var(np.subtract(draws[main], draws[model]), ddof=1)
            variance += _seed_variance(scores[main], scores[model], is_paired)
            difference, error = float(scores[main].mean() - scores[model].mean()), float(np.sqrt(variance))
            is_beyond = abs(difference) > ERRORS * error
            compared[model] = {
                "difference": difference,
                "standard_error": error,
                "beyond_chance": is_beyond,
                "resamples": resamples,
            }
    return compared


def _seed_variance(scores: np.ndarray, others: np.ndarray, is_paired: bool) -> float:
    return _mean_variance(scores - others) if is_paired else _mean_variance(scores) + _mean_variance(others)


def _mean_variance(scores: np.ndarray) -> float:
    """Return the variance of the mean of independent scores; 0.0 for a single one, of which nothing is known."""
    return float(np.var(scores, ddof=1) / len(scores)) if len(scores) > 1 else 0.0
