"""Evaluate a pre-training model on held-out records, with sums over all predictions in float64 on every backend."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from keras_bert_flow.distribution.cluster import SINGLE, Cluster
from keras_bert_flow.text.objectives.objective import Objective

SUMS = ("loss", "correct", "weight", "missed")


def score_pretraining(
    model, batches: Iterable[tuple], objective: Objective, cluster: Cluster = SINGLE
) -> dict[str, float]:
    """Return the held-out scores of a pre-training model.

    Args:
        model: a model of `models.pretraining`.
        batches: (x, y, sample_weight) of equal shapes.
        objective: defines the outputs of the model and the names of their scores.
        cluster: the processes, each with a share of the rows.
    Returns:
        `masked_lm_loss` (nats per masked token), `masked_lm_perplexity`, `masked_lm_accuracy`, `unigram_accuracy` (of
        always predicting the commonest of these tokens: the best possible without context), `loss` and `accuracy` of
        other outputs under their names, and further scores of the objective; empty if there are no batches.
    """
    outputs = objective.scores
    sums: dict[str, float] = defaultdict(float)
    tokens: Counter = Counter()
    for x, y, weights in batches:
        logits = cluster.predict(model, x)
        for output, name in outputs.items():
            _add_scores(sums, name, np.asarray(logits[output]), y[output], weights[output])
        tokens.update(y["mlm"][weights["mlm"] > 0].tolist())
    if cluster.processes > 1:
        sums, tokens = _add_up(sums, tokens, outputs.values(), cluster)
    if not tokens:
        return {}
    scores = {}
    for name in outputs.values():
        scores[f"{name}_loss"] = sums[f"{name}_loss"] / sums[f"{name}_weight"]
        scores[f"{name}_accuracy"] = sums[f"{name}_correct"] / sums[f"{name}_weight"]
    scores["masked_lm_perplexity"] = float(np.exp(scores["masked_lm_loss"]))
    scores["unigram_accuracy"] = max(tokens.values()) / tokens.total()
    return scores | objective.find_further_scores(sums)


def _add_up(
    sums: Mapping[str, float], tokens: Counter, names: Iterable[str], cluster: Cluster
) -> tuple[dict[str, float], Counter]:
    """Sum the sums and counts over all processes."""
    keys = [f"{name}_{sum_name}" for name in names for sum_name in SUMS]
    size = int(-cluster.smallest(-max(tokens, default=0))) + 1
    counts = np.bincount(list(tokens), list(tokens.values()), size) if tokens else np.zeros(size)
    totals = cluster.sum(np.array([sums[key] for key in keys] + counts.tolist()))
    counted = {token: int(count) for token, count in enumerate(totals[len(keys) :]) if count}
    return dict(zip(keys, totals, strict=False)), Counter(counted)


def _add_scores(sums: dict[str, float], name: str, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
    chosen = np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    largest = logits.max(axis=-1)
    total = np.exp(logits - largest[..., None]).sum(axis=-1, dtype=np.float64)
    losses = np.log(total) + largest - chosen
    sums[f"{name}_loss"] += float((losses * weights).sum())
    sums[f"{name}_correct"] += float(((logits.argmax(axis=-1) == labels) * weights).sum())
    sums[f"{name}_weight"] += float(weights.sum())
    sums[f"{name}_missed"] += float((-np.expm1(-losses) * weights).sum())  # the probability of another class
