"""Compare the pre-trained runs with every other model, and test whether chance explains the difference."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from keras_bert_flow.tasks.core.task import Measure

RESAMPLES = 200  # the standard deviation of this many draws is known to 5 %
LEAST_RESAMPLES = 100
DRAWN = 20_000_000  # most examples of all draws of all runs together
ERRORS = 2  # standard errors within which a difference is attributed to chance
LEVEL = 0.0455  # of a two-sided normal test at two standard errors
LEAST_EXAMPLES = 6  # signs of five differences agree by chance more often than `LEVEL`: 2 / 2**5 > 0.0455 > 2 / 2**6
MOST_EXACT = 12  # differing examples whose signs are all enumerated, 4,096 of them; with more the error is good enough
MOST_LOOKED_AT = 2_000  # examples, for which each run is measured alone


def draw_scores(measures: Mapping[str, Sequence[Measure]], count: int, seed: int = 1) -> dict[str, list[float]]:
    """Return the mean score over the runs of each model on many draws of the examples, the same draws for every model.

    Args:
        measures: model → the score of each run as a function of the chosen examples.
        count: number of examples.
        seed: seed of the draws.
    """
    rng = np.random.default_rng(seed)
    runs = sum(map(len, measures.values()))
    resamples = max(LEAST_RESAMPLES, min(RESAMPLES, DRAWN // (count * runs)))
    draws: dict[str, list[float]] = {model: [] for model in measures}
    for _ in range(resamples):
        chosen = rng.integers(count, size=count)
        for model, of_model in measures.items():
            draws[model].append(float(np.mean([measure(chosen) for measure in of_model])))
    return draws


def score_errors(
    measures: Mapping[str, Sequence[Measure]], draws: Mapping[str, Sequence[float]], count: int
) -> dict[str, float]:
    """Return the standard error of the mean score of each model, over examples and seeds; see `compare_models`."""
    scores = {
        model: np.array([measure(np.arange(count)) for measure in of_model]) for model, of_model in measures.items()
    }
    return {
        model: float(np.sqrt(np.var(draws[model], ddof=1) + _mean_variance(of_model)))
        for model, of_model in scores.items()
    }


def compare_models(
    measures: Mapping[str, Sequence[Measure]],
    seeds: Mapping[str, Sequence[int | None]],
    draws: Mapping[str, Sequence[float]],
    count: int,
    main: str,
) -> dict[str, dict[str, float | int | bool]]:
    """Return the difference in mean score between the runs of `main` and each other model, with its standard error.

    The variance of a difference is the sum of two parts. Examples: all runs are measured on the same examples, drawn
    with replacement many times (a paired bootstrap), so what makes an example hard for both cancels out. Seeds: the
    variance of the difference between runs of one seed, divided by the number of seeds; if the seeds differ, or only
    one side has several, the variance of each side. A side with a single run has no such part, which makes the error
    too small.

    The bootstrap has no error where all differences are equal, and too small a one where few examples differ. So if a
    metric is a mean over examples, at most `MOST_EXACT` of which differ, a difference beyond chance must also pass the
    exact paired test: among all ways to swap the two models on each example, at most 4.55 % have such a difference.
    With fewer than `LEAST_EXAMPLES` examples no paired test can tell anything.

    Args:
        measures: model → the score of each run as a function of the chosen examples.
        seeds: model → the seed of each run.
        draws: of `draw_scores`.
        count: number of examples.
        main: the model that is compared with the others.
    Returns:
        Other model → difference; standard_error; beyond_chance, whether the difference is more than two standard
        errors and passes the exact test; too_few, whether there are too few examples to tell; resamples.
    Source of the exact test: Fisher 1935, The Design of Experiments, section 21.
    """
    everything = np.arange(count)
    scores = {model: np.array([measure(everything) for measure in of_model]) for model, of_model in measures.items()}
    compared = {}
    for model in measures:
        if model != main:
            is_paired = list(seeds[model]) == list(seeds[main])
            variance = np.var(np.subtract(draws[main], draws[model]), ddof=1)
            variance += _seed_variance(scores[main], scores[model], is_paired)
            difference, error = float(scores[main].mean() - scores[model].mean()), float(np.sqrt(variance))
            is_beyond = count >= LEAST_EXAMPLES and abs(difference) > ERRORS * error
            if is_beyond and count <= MOST_LOOKED_AT:
                is_beyond = _passes_exact_test(measures[main], measures[model], count)
            compared[model] = {
                "difference": difference,
                "standard_error": error,
                "beyond_chance": is_beyond,
                "too_few": count < LEAST_EXAMPLES,
                "resamples": len(draws[model]),
            }
    return compared


def _passes_exact_test(ours: Sequence[Measure], theirs: Sequence[Measure], count: int) -> bool:
    """Return whether the permutation test of paired examples agrees; True for metrics that are no means over them."""
    scores, others = _measure_each(ours, count), _measure_each(theirs, count)
    if scores is None or others is None:
        return True
    differences = scores - others
    differences = differences[np.abs(differences) > 1e-9]
    if not 0 < len(differences) <= MOST_EXACT:
        return True
    signs = np.array(list(itertools.product((-1, 1), repeat=len(differences))))
    sums = np.abs(signs @ differences)
    return bool(np.mean(sums >= abs(differences.sum()) - 1e-9) <= LEVEL)


def _measure_each(runs: Sequence[Measure], count: int) -> np.ndarray | None:
    """Return the score of each example, averaged over runs; None if their mean is not the score of all examples."""
    scores = np.array([[measure(np.array([place])) for place in range(count)] for measure in runs])
    whole = [measure(np.arange(count)) for measure in runs]
    return scores.mean(axis=0) if np.allclose(scores.mean(axis=1), whole, atol=1e-6) else None


def _seed_variance(scores: np.ndarray, others: np.ndarray, is_paired: bool) -> float:
    return _mean_variance(scores - others) if is_paired else _mean_variance(scores) + _mean_variance(others)


def _mean_variance(scores: np.ndarray) -> float:
    """Return the variance of the mean of independent scores; 0.0 for a single one, of which nothing is known."""
    return float(np.var(scores, ddof=1) / len(scores)) if len(scores) > 1 else 0.0
