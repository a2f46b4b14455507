"""Compute `metrics.json` from the predictions of every run: scores, intervals, comparisons, convergence.

The format, with shares from 0 to 1, losses in nats and durations in seconds:

    task: name, kind, main_metric, baseline (what it is, in words), labels (list; empty if the task has none),
        train_examples, dev_examples
    models: baseline, tfidf (absent for tasks that do not label texts), random (absent if not compared), initial (absent
        if pre-training began with random embeddings, or it is not compared), pretrained; each
        every metric that the task's `score` returns: mean, standard_deviation, minimum, maximum over the runs
        runs: list of seed, every such metric, collapsed (all predictions are the same, though the labels are not),
            improving (the dev score was still rising when the run ended, see
            `keras_bert_flow.evaluation.results`; null if unknown), seconds, and for a fine-tuned model
            trained_parameters, parameters (LoRA's included) and peak_bytes (of the process by the end of the run);
            baseline and tfidf are one run each, with seed null and 0.0 seconds
    comparisons: each model but pretrained → difference (of the mean main metrics, pretrained minus that), its
        standard_error, beyond_chance, too_few and resamples; see `keras_bert_flow.evaluation.results`
    standard_errors: each model → the standard error of its mean main metric, over dev examples and seeds
    tfidf: how that model was chosen: longest, strength, score, choosing_examples and fitted_examples; see
        `keras_bert_flow.tasks.baselines.word_baseline`
    extra_dev: name of each further dev file → examples, and models as above; absent if there is none
    pretraining: masked_lm_loss, masked_lm_accuracy, masked_lm_perplexity, unigram_accuracy,
        next_sentence_loss and next_sentence_accuracy (or sentence_order_…, or neither, by objective), steps,
        tokens, tokens_per_second, seconds; taken as given
    earlier: the same for training before that, by title, if there was any
    grid: what `search_grid` saves in `grid.json`, if fine-tuning had a grid
    grid_random: the same for random weights
    label_curve: the scores on fewer labels, if fine-tuning had `label_counts`; see
        `keras_bert_flow.evaluation.tables`
    unreachable: `train`, `dev` or `extra_dev.<name>` → answers, questions, words or spans → total, and by reason
        how many no model can predict; see `count_unreachable` of the task. Absent if every label can be predicted
    remarks: lines about the tables: what was guessed, dev rows that are training rows, labels that look alike; absent
        if there is nothing to say
    texts: the same names → counters of the texts of the file that were cut, and of characters that the tokenizer loses;
        see `count_texts` of `keras_bert_flow.training.finetuning.task_data`
    minimal_pairs: of the pre-trained model, if the configuration names a file of them; see
        `keras_bert_flow.evaluation.questions`
    interval: of the main metric of the first pre-trained run, over the dev examples: metric, seed, value, low, high,
        level, resamples; see `keras_bert_flow.evaluation.results`
    classes: class, label or type of span → gold, predicted and correct, counts summed over the pre-trained runs, and
        precision, recall and f1 of the sums; empty if the task has none
    confusion, for classification with at most 1,000 classes: counts, row = label, column = prediction, summed over the
        pre-trained runs

`score` of the task defines each metric.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_bert_flow.tasks.core.metrics import confusion, pool_tables, summarise_runs
from keras_bert_flow.tasks.core.task import Measure, Prediction, Task

# Compare the pre-trained runs with every other model, and test whether chance explains the difference.

RESAMPLES = 200  # the standard deviation of this many draws is known to 5 %
LEAST_RESAMPLES = 100
DRAWN = 20_000_000  # most examples of all draws of all runs together
ERRORS = 2  # standard errors within which a difference is attributed to chance
LEVEL = 0.0455  # of a two-sided normal test at two standard errors
LEAST_EXAMPLES = 6  # signs of five differences agree by chance more often than `LEVEL`: 2 / 2**5 > 0.0455 > 2 / 2**6
MOST_EXACT = 12  # differing examples whose signs are all enumerated, 4,096 of them; with more the error is good enough
MOST_ERRORS = 10  # shown
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
            ours, theirs = scores[main], scores[model]
            is_paired = list(seeds[model]) == list(seeds[main])
            variance = np.var(np.subtract(draws[main], draws[model]), ddof=1)
            variance += _mean_variance(ours - theirs) if is_paired else _mean_variance(ours) + _mean_variance(theirs)
            difference, error = float(ours.mean() - theirs.mean()), float(np.sqrt(variance))
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


def _mean_variance(scores: np.ndarray) -> float:
    """Return the variance of the mean of independent scores; 0.0 for a single one, of which nothing is known."""
    return float(np.var(scores, ddof=1) / len(scores)) if len(scores) > 1 else 0.0


# Bootstrap interval of a score: how much it varies with other examples of the same kind.

INTERVAL_RESAMPLES = 1000
INTERVAL_DRAWN = 10_000_000  # most examples of all resamples together: 1,000 resamples of 10,000 take seconds
INTERVAL_LEVEL = 0.95


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
    resamples = max(LEAST_RESAMPLES, min(INTERVAL_RESAMPLES, INTERVAL_DRAWN // count))
    scores = [measure(rng.integers(count, size=count)) for _ in range(resamples)]
    low, high = np.quantile(scores, [(1 - INTERVAL_LEVEL) / 2, (1 + INTERVAL_LEVEL) / 2]).tolist()
    return {"low": low, "high": high, "level": INTERVAL_LEVEL, "resamples": resamples}


# Detect runs that were still improving when they ended, so that their scores do not stand for the model's best.

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


MOST_CONFUSED = 1_000  # classes of a confusion matrix, which has their square of numbers
BASELINE, WORDS, RANDOM, INITIAL, PRETRAINED = "baseline", "tfidf", "random", "initial", "pretrained"


@dataclass(frozen=True)
class RunPredictions:
    """Predictions of one fine-tuned model on the dev file.

    Attributes:
        seed: seed of the run.
        predictions: one per example, as returned by the task's `decode`.
        seconds: duration of the fine-tuning.
        dev_scores: the main metric on the dev set at each evaluation of the training, in order.
        costs: trained_parameters, parameters and peak_bytes, if they are known.
        calibration: how its probabilities were calibrated; None if they were not.
    """

    seed: int | None
    predictions: Sequence[Prediction]
    seconds: float
    dev_scores: tuple[float, ...] = ()
    costs: Mapping[str, int] = field(default_factory=dict)
    calibration: Mapping[str, float] | None = None


def build_results(
    name: str,
    task: Task,
    training: Sequence[Any],
    dev: Sequence[Any],
    runs: Mapping[str, Sequence[RunPredictions]],
    pretraining: Mapping[str, Any],
) -> dict[str, Any]:
    """Score every run and summarise them by model.

    Args:
        name: name of the task, for display.
        task: with the labels of its training examples.
        training: examples that the baseline is computed from.
        dev: the examples that were predicted.
        runs: `pretrained`, and `random` if it is compared: the runs of each, one per seed; and `tfidf`, of one run, if
            the kind of task has it.
        pretraining: metrics of the pre-training, as above.
    Returns:
        `metrics.json`, in plain Python values.
    Raises:
        ValueError: a model is missing or unknown, or the number of predictions is not that of examples.
    """
    found, ours = _list_models(task, training, dev, runs), runs[PRETRAINED]
    models = {model: _summarise(task, dev, of_model) for model, of_model in found.items()}
    first, score = ours[0], models[PRETRAINED]["runs"][0][task.main_metric]
    interval = bootstrap_interval(task.make_measure(dev, first.predictions), len(dev))
    results = {
        "task": {
            "name": name,
            "kind": task.kind,
            "main_metric": task.main_metric,
            "baseline": task.baseline,
            "labels": list(task.labels),
            "train_examples": len(training),
            "dev_examples": len(dev),
        },
        "models": models,
        **_compare(task, dev, found),
        "pretraining": dict(pretraining),
        "interval": {"metric": task.main_metric, "seed": first.seed, "value": score, **interval},
        "classes": pool_tables([task.tabulate(dev, run.predictions) for run in ours]),
    }
    if task.has_confusion and len(task.labels) <= MOST_CONFUSED:
        ids = {label: number for number, label in enumerate(task.labels)}
        gold = np.array([ids[example.label] for example in dev])
        answers = [np.array([ids[prediction["label"]] for prediction in run.predictions]) for run in ours]
        results["confusion"] = np.sum([confusion(gold, labels, len(ids)) for labels in answers], axis=0).tolist()
    return results


def score_models(
    task: Task, training: Sequence[Any], dev: Sequence[Any], runs: Mapping[str, Sequence[RunPredictions]]
) -> dict[str, dict[str, Any]]:
    """Score the baseline and every run on one dev file, and summarise them: the `models` of the results."""
    return {model: _summarise(task, dev, found) for model, found in _list_models(task, training, dev, runs).items()}


def _list_models(
    task: Task, training: Sequence[Any], dev: Sequence[Any], runs: Mapping[str, Sequence[RunPredictions]]
) -> dict[str, Sequence[RunPredictions]]:
    """Return the runs of each model, the baseline included, in the order of the results.

    Raises:
        ValueError: as for `build_results`.
    """
    unknown = sorted(set(runs) - {WORDS, RANDOM, INITIAL, PRETRAINED})
    if unknown or not runs.get(PRETRAINED):
        raise ValueError(
            "`runs` must hold `pretrained`, and may hold `random`, `initial` and `tfidf`. "
            f"Received: {', '.join(f'{name} ({len(runs[name])} runs)' for name in sorted(runs)) or 'nothing'}."
        )
    for model, found in runs.items():
        for run in found:
            if len(run.predictions) != len(dev):
                raise ValueError(
                    f"{model}, seed {run.seed}: each example must have a prediction. "
                    f"Received: {len(run.predictions)} for {len(dev)} examples. Predict the whole dev table."
                )
    guessed = {BASELINE: [RunPredictions(None, task.guess(training, dev), 0.0)]}
    listed = guessed | {model: runs.get(model, ()) for model in (WORDS, RANDOM, INITIAL, PRETRAINED)}
    return {model: of_model for model, of_model in listed.items() if of_model}


def _compare(
    task: Task, dev: Sequence[Any], found: Mapping[str, Sequence[RunPredictions]]
) -> dict[str, dict[str, Any]]:
    """Return `comparisons` and `standard_errors` of the results."""
    measures = {
        model: [task.make_measure(dev, run.predictions) for run in of_model] for model, of_model in found.items()
    }
    seeds = {model: [run.seed for run in of_model] for model, of_model in found.items()}
    draws = draw_scores(measures, len(dev))
    return {
        "comparisons": compare_models(measures, seeds, draws, len(dev), PRETRAINED),
        "standard_errors": score_errors(measures, draws, len(dev)),
    }


def worst_errors(task: Task, examples: Sequence[Any], predictions: Sequence[Prediction]) -> list[dict[str, Any]]:
    """Return the worst errors of a run, highest probability first; for numbers, largest distance first.

    Returns:
        What `review` of the task returns for each.
    """
    reviews = (task.review(*pair) for pair in zip(examples, predictions, strict=True))
    errors = [error for error in reviews if error is not None]
    # Ties keep the order of the table.
    return sorted(errors, key=lambda error: -error["distance" if "distance" in error else "probability"])[:MOST_ERRORS]


def _summarise(task: Task, dev: Sequence[Any], runs: Sequence[RunPredictions]) -> dict[str, Any]:
    scores = [task.score(dev, run.predictions) for run in runs]
    listed = [
        {
            "seed": run.seed,
            **score,
            "collapsed": task.is_collapsed(dev, run.predictions),
            "improving": is_improving(run.dev_scores, task.main_metric, len(dev)),
            "seconds": float(run.seconds),
            **run.costs,
        }
        for run, score in zip(runs, scores, strict=True)
    ]
    return {**summarise_runs(scores), "runs": listed}
