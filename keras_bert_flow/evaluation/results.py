"""Turn the predictions of every run into the results that `metrics.json` holds.

The format, in which every share is 0 to 1, every loss is in nats and every span in seconds:

    task: name, labels (list), train_examples, dev_examples
    models: majority, random (absent when not compared), pretrained; each
        accuracy, f1, f1_positive (two classes only), matthews:
            mean, standard_deviation, minimum, maximum over the runs
        runs: list of seed, accuracy, f1, f1_positive, matthews, collapsed, seconds;
            the majority class is one run, of seed null and 0.0 seconds
    pretraining: masked_lm_loss, masked_lm_accuracy, masked_lm_perplexity, unigram_accuracy,
        next_sentence_loss and next_sentence_accuracy (or sentence_order_…, or neither: by the objective), steps,
        tokens, tokens_per_second, seconds; taken as given
    first_phase: the same of a pre-training before that, where there was one
    confusion: counts, row = label, column = prediction, summed over the pre-trained runs

What each metric is says `keras_bert_flow.tasks.metrics`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_bert_flow.tasks.metrics import classification_metrics, confusion, majority_class, summarise_runs
from keras_bert_flow.tasks.tables import TaskTable

COMPARED = ("random", "pretrained")

# Float32 softmax over a hundred classes sums to 1 within 1e-5; logits miss by far more than this.
PROBABILITY_SLACK = 1e-3


@dataclass(frozen=True)
class RunPredictions:
    """What one fine-tuned model answered on the dev table.

    Attributes:
        seed: of the run.
        probabilities: float, (examples, classes).
        seconds: how long the fine-tuning took.
    """

    seed: int
    probabilities: np.ndarray
    seconds: float


def build_results(
    task: Mapping[str, Any],
    runs: Mapping[str, Sequence[RunPredictions]],
    train_labels: np.ndarray,
    dev_labels: np.ndarray,
    pretraining: Mapping[str, Any],
) -> dict[str, Any]:
    """Score every run and summarise them by model.

    Args:
        task: name and labels.
        runs: `pretrained`, and `random` where it is compared: the runs of each, one a seed.
        train_labels: int, (train examples,). They say which class is the majority.
        dev_labels: int, (dev examples,).
        pretraining: figures of the pre-training, as above.
    Returns:
        `metrics.json`, in plain Python values.
    Raises:
        ValueError: a model is missing or unknown, or probabilities are none or do not fit the table.
    """
    _check_models(runs)
    num_classes = len(task["labels"])
    majority = np.full(len(dev_labels), majority_class(train_labels))
    models = {"majority": _summarise([_score(None, dev_labels, majority, num_classes, 0.0)])}
    total = np.zeros((num_classes, num_classes), dtype=np.int64)
    for model in COMPARED:
        scores = []
        for run in runs.get(model, ()):
            _check_probabilities(model, run, len(dev_labels), num_classes)
            predictions = run.probabilities.argmax(axis=1)
            scores.append(_score(run.seed, dev_labels, predictions, num_classes, run.seconds))
            if model == "pretrained":
                total += confusion(dev_labels, predictions, num_classes)
        if scores:
            models[model] = _summarise(scores)
    return {
        "task": {
            "name": task["name"],
            "labels": list(task["labels"]),
            "train_examples": len(train_labels),
            "dev_examples": len(dev_labels),
        },
        "models": models,
        "pretraining": dict(pretraining),
        "confusion": total.tolist(),
    }


def worst_errors(
    table: TaskTable, labels: np.ndarray, probabilities: np.ndarray, names: Sequence[str], limit: int = 10
) -> list[dict[str, Any]]:
    """Return the examples that a run got wrong with the highest probability, surest first.

    Args:
        table: the dev table.
        labels: int, (examples,).
        probabilities: float, (examples, classes). Of one run.
        names: name of each class.
        limit: most examples to return.
    Returns:
        text, text_pair (where the task has one), gold, predicted and probability of each.
    """
    predictions = probabilities.argmax(axis=1)
    surest = np.argsort(-probabilities.max(axis=1), kind="stable")  # equals keep the order of the table
    wrong = [int(index) for index in surest if predictions[index] != labels[index]][:limit]
    return [
        {
            "text": table.texts[index],
            **({"text_pair": table.text_pairs[index]} if table.text_pairs else {}),
            "gold": names[labels[index]],
            "predicted": names[predictions[index]],
            "probability": float(probabilities[index].max()),
        }
        for index in wrong
    ]


def _score(
    seed: int | None, labels: np.ndarray, predictions: np.ndarray, num_classes: int, seconds: float
) -> dict[str, Any]:
    return {"seed": seed, **classification_metrics(labels, predictions, num_classes), "seconds": float(seconds)}


def _summarise(scores: list[dict[str, Any]]) -> dict[str, Any]:
    return {**summarise_runs(scores), "runs": scores}


def _check_models(runs: Mapping[str, Sequence[RunPredictions]]) -> None:
    unknown = sorted(set(runs) - set(COMPARED))
    if unknown or not runs.get("pretrained"):
        raise ValueError(
            "`runs` must hold `pretrained`, and may hold `random`. "
            f"Received: {', '.join(f'{name} ({len(runs[name])} runs)' for name in sorted(runs)) or 'nothing'}."
        )


def _check_probabilities(model: str, run: RunPredictions, examples: int, num_classes: int) -> None:
    place = f"{model}, seed {run.seed}"
    if run.probabilities.shape != (examples, num_classes):
        raise ValueError(
            f"{place}: `probabilities` must be (examples, classes). "
            f"Received: {run.probabilities.shape}, not {(examples, num_classes)}. Predict the whole dev table."
        )
    if not np.isfinite(run.probabilities).all():
        raise ValueError(
            f"{place}: `probabilities` must be finite. Received: nan or infinity: the fine-tuning diverged. "
            "Lower finetuning.learning_rate."
        )
    if run.probabilities.min() < 0 or np.abs(run.probabilities.sum(axis=1) - 1).max() > PROBABILITY_SLACK:
        raise ValueError(
            f"{place}: `probabilities` must sum to 1 for each example. Received: other rows. Apply a softmax."
        )
