"""Compute the results in `metrics.json` from the predictions of every run.

The format, with shares from 0 to 1, losses in nats and durations in seconds:

    task: name, kind, main_metric, baseline (what it is, in words), labels (list; empty if the task has none),
        train_examples, dev_examples
    models: baseline, tfidf (absent for tasks that do not label texts), random (absent if not compared), initial (absent
        if pre-training began with random embeddings, or it is not compared), pretrained; each
        every metric that the task's `score` returns: mean, standard_deviation, minimum, maximum over the runs
        runs: list of seed, every such metric, collapsed (all predictions are the same, though the labels are not),
            improving (the dev score was still rising when the run ended, see
            `keras_bert_flow.evaluation.convergence`; null if unknown), seconds, and for a fine-tuned model
            trained_parameters, parameters (LoRA's included) and peak_bytes (of the process by the end of the run);
            baseline and tfidf are one run each, with seed null and 0.0 seconds
    comparisons: each model but pretrained → difference (of the mean main metrics, pretrained minus that), its
        standard_error, beyond_chance, too_few and resamples; see `keras_bert_flow.evaluation.comparison`
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
        `keras_bert_flow.evaluation.label_curve`
    unreachable: `train`, `dev` or `extra_dev.<name>` → answers, questions, words or spans → total, and by reason
        how many no model can predict; see `count_unreachable` of the task. Absent if every label can be predicted
    remarks: lines about the tables: what was guessed, dev rows that are training rows, labels that look alike; absent
        if there is nothing to say
    texts: the same names → counters of the texts of the file that were cut, and of characters that the tokenizer loses;
        see `count_texts` of `keras_bert_flow.training.finetuning.task_data`
    minimal_pairs: of the pre-trained model, if the configuration names a file of them; see
        `keras_bert_flow.evaluation.minimal_pairs`
    interval: of the main metric of the first pre-trained run, over the dev examples: metric, seed, value, low, high,
        level, resamples; see `keras_bert_flow.evaluation.interval`
    classes: class, label or type of span → gold, predicted and correct, counts summed over the pre-trained runs, and
        precision, recall and f1 of the sums; empty if the task has none
    confusion, for classification with at most 1,000 classes: counts, row = label, column = prediction, summed over the
        pre-trained runs

`score` of the task defines each metric.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from keras_bert_flow.evaluation.comparison import compare_models, draw_scores, score_errors
from keras_bert_flow.evaluation.convergence import is_improving
from keras_bert_flow.evaluation.interval import bootstrap_interval
from keras_bert_flow.tasks.core.counts import pool_tables
from keras_bert_flow.tasks.core.metrics import confusion, summarise_runs
from keras_bert_flow.tasks.core.task import Prediction, Task

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
    """

    seed: int | None
    predictions: Sequence[Prediction]
    seconds: float
    dev_scores: tuple[float, ...] = ()
    costs: Mapping[str, int] = field(default_factory=dict)


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
    models = score_models(task, training, dev, runs)
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
        **_compare(task, training, dev, runs),
        "pretraining": dict(pretraining),
        "interval": _bound(task, dev, runs[PRETRAINED][0], models[PRETRAINED]["runs"][0][task.main_metric]),
        "classes": pool_tables([task.tabulate(dev, run.predictions) for run in runs[PRETRAINED]]),
    }
    if task.has_confusion and len(task.labels) <= MOST_CONFUSED:
        results["confusion"] = _count_confusion(task, dev, runs[PRETRAINED])
    return results


def score_models(
    task: Task, training: Sequence[Any], dev: Sequence[Any], runs: Mapping[str, Sequence[RunPredictions]]
) -> dict[str, dict[str, Any]]:
    """Score the baseline and every run on one dev file, and summarise them: the `models` of the results."""
    _check_runs(runs, len(dev))
    return {model: _summarise(task, dev, found) for model, found in _list_models(task, training, dev, runs).items()}


def _list_models(task: Task, training, dev, runs) -> dict[str, Sequence[RunPredictions]]:
    guessed = {BASELINE: [RunPredictions(None, task.guess(training, dev), 0.0)]}
    found = guessed | {model: runs.get(model, ()) for model in (WORDS, RANDOM, INITIAL, PRETRAINED)}
    return {model: of_model for model, of_model in found.items() if of_model}


def _compare(task: Task, training, dev, runs) -> dict[str, dict[str, Any]]:
    """Return `comparisons` and `standard_errors` of the results."""
    found = _list_models(task, training, dev, runs)
    measures = {
        model: [task.make_measure(dev, run.predictions) for run in of_model] for model, of_model in found.items()
    }
    seeds = {model: [run.seed for run in of_model] for model, of_model in found.items()}
    draws = draw_scores(measures, len(dev))
    return {
        "comparisons": compare_models(measures, seeds, draws, len(dev), PRETRAINED),
        "standard_errors": score_errors(measures, draws, len(dev)),
    }


def worst_errors(
    task: Task, examples: Sequence[Any], predictions: Sequence[Prediction], limit: int = 10
) -> list[dict[str, Any]]:
    """Return the errors of a run, highest probability first; for numbers, largest distance first.

    Args:
        limit: most examples to return.
    Returns:
        What `review` of the task returns for each.
    """
    reviews = (task.review(*pair) for pair in zip(examples, predictions, strict=True))
    errors = [error for error in reviews if error is not None]
    return sorted(errors, key=_weigh)[:limit]  # ties keep the order of the table


def _weigh(error: Mapping[str, Any]) -> float:
    return -error["distance" if "distance" in error else "probability"]


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


def _bound(task: Task, dev: Sequence[Any], run: RunPredictions, value: float) -> dict[str, Any]:
    interval = bootstrap_interval(task.make_measure(dev, run.predictions), len(dev))
    return {"metric": task.main_metric, "seed": run.seed, "value": value, **interval}


def _count_confusion(task: Task, dev: Sequence[Any], runs: Sequence[RunPredictions]) -> list[list[int]]:
    ids = {label: number for number, label in enumerate(task.labels)}
    gold = np.array([ids[example.label] for example in dev])
    answers = [np.array([ids[prediction["label"]] for prediction in run.predictions]) for run in runs]
    return np.sum([confusion(gold, labels, len(ids)) for labels in answers], axis=0).tolist()


def _check_runs(runs: Mapping[str, Sequence[RunPredictions]], examples: int) -> None:
    unknown = sorted(set(runs) - {WORDS, RANDOM, INITIAL, PRETRAINED})
    if unknown or not runs.get(PRETRAINED):
        raise ValueError(
            "`runs` must hold `pretrained`, and may hold `random`, `initial` and `tfidf`. "
            f"Received: {', '.join(f'{name} ({len(runs[name])} runs)' for name in sorted(runs)) or 'nothing'}."
        )
    for model, found in runs.items():
        for run in found:
            if len(run.predictions) != examples:
                raise ValueError(
                    f"{model}, seed {run.seed}: each example must have a prediction. "
                    f"Received: {len(run.predictions)} for {examples} examples. Predict the whole dev table."
                )
