"""Evaluate on held-out records, with sums in float64 on every backend, and notice a plateau."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_bert_flow.config.pretraining import PretrainingConfig
from keras_bert_flow.data.pretraining_records import PretrainingRecords
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
        other outputs with labels under their names, and further scores of the objective; empty if there are no batches.
        Without a masked-LM head, none of the former. Outputs that are losses themselves, (batch, positions, 1), have no
        accuracy.
    """
    outputs = objective.scores
    sums: dict[str, float] = defaultdict(float)
    tokens: Counter = Counter()
    for x, y, weights in batches:
        logits = cluster.predict(model, x)
        for output, name in outputs.items():
            _add_scores(sums, name, np.asarray(logits[output]), y[output], weights[output])
        if "mlm" in outputs:
            tokens.update(y["mlm"][weights["mlm"] > 0].tolist())
    if cluster.processes > 1:
        sums, tokens = _add_up(sums, tokens, outputs.values(), cluster)
    if not any(sums[f"{name}_weight"] for name in outputs.values()):
        return {}
    scores = {}
    for name in (name for name in outputs.values() if sums[f"{name}_weight"]):
        scores[f"{name}_loss"] = sums[f"{name}_loss"] / sums[f"{name}_weight"]
        if f"{name}_correct" in sums:
            scores[f"{name}_accuracy"] = sums[f"{name}_correct"] / sums[f"{name}_weight"]
    if tokens:
        scores["masked_lm_perplexity"] = float(np.exp(scores["masked_lm_loss"]))
        scores["unigram_accuracy"] = max(tokens.values()) / tokens.total()
    return scores | objective.find_further_scores(sums)


def _add_up(
    sums: Mapping[str, float], tokens: Counter, names: Iterable[str], cluster: Cluster
) -> tuple[dict[str, float], Counter]:
    """Sum the sums and counts over all processes."""
    keys = [key for name in names for sum_name in SUMS if (key := f"{name}_{sum_name}") in sums]  # of each process
    size = int(-cluster.smallest(-max(tokens, default=0))) + 1
    counts = np.bincount(list(tokens), list(tokens.values()), size) if tokens else np.zeros(size)
    totals = cluster.sum(np.array([sums[key] for key in keys] + counts.tolist()))
    counted = {token: int(count) for token, count in enumerate(totals[len(keys) :]) if count}
    return dict(zip(keys, totals, strict=False)), Counter(counted)


def _add_scores(sums: dict[str, float], name: str, logits: np.ndarray, labels: np.ndarray, weights: np.ndarray) -> None:
    sums[f"{name}_weight"] += float(weights.sum())
    if logits.shape[-1] == 1:
        sums[f"{name}_loss"] += float((logits[..., 0] * weights).sum(dtype=np.float64))
        return
    chosen = np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    largest = logits.max(axis=-1)
    total = np.exp(logits - largest[..., None]).sum(axis=-1, dtype=np.float64)
    losses = np.log(total) + largest - chosen
    sums[f"{name}_loss"] += float((losses * weights).sum())
    sums[f"{name}_correct"] += float(((logits.argmax(axis=-1) == labels) * weights).sum())
    sums[f"{name}_missed"] += float((-np.expm1(-losses) * weights).sum())  # the probability of another class


# Detect a plateau of the pre-training loss near the unigram loss.

STALLED_SHARE = 0.2  # share of the run within which the loss must fall
LEAST_GAIN = 0.02  # by this share of the loss
NEAR_UNIGRAM = 0.85  # share of the unigram loss: a model that uses the context is far below it
REMEDIES = {"optimizer": "muon", "token_embeddings": "co_occurrence", "output_bias": "unigram"}
SAMPLE_RECORDS = 10_000  # takes half a second; the entropy of 100,000 masked tokens is accurate to a few hundredths


class PlateauWatch:
    """Watch the log, and warn once if the masked-LM loss has stalled near the unigram loss.

    Small masked LMs stay there for long, and in short runs to the end: they have learned the frequency of each token,
    but not yet to use the context.

    Args:
        find_unigram_loss: returns the loss of token frequencies, in nats; called once the loss has stalled.
        settings: remedies that are already set are not proposed.
        earlier: existing lines of the log.
        first_step: number of steps before the first that learns masked tokens.
    """

    def __init__(
        self,
        find_unigram_loss: Callable[[], float],
        settings: PretrainingConfig,
        earlier: Sequence[Mapping[str, Any]] = (),
        first_step: int = 0,
    ):
        self._total_steps = settings.total_steps
        self._first_line = first_step + settings.log_every_steps if first_step else 0  # whose steps all learn them
        self._remedies = [
            f"pretraining.{name}={value}" for name, value in REMEDIES.items() if getattr(settings, name) != value
        ]
        self._find_unigram_loss = find_unigram_loss
        self._unigram_loss: float | None = None
        self._is_told = False
        self._losses: list[tuple[int, float]] = []
        for line in earlier:
            self.see(line)

    def see(self, line: Mapping[str, Any]) -> str | None:
        """Return a one-line warning if the run is on a plateau; None if it is not, or if the warning was already given.

        Args:
            line: a line of the log, with `step` and the loss of its steps.
        """
        loss = line.get("mlm_loss", line.get("loss"))
        step = line["step"]
        if loss is None or self._is_told or step < self._first_line:
            return None
        self._losses.append((step, loss))
        before = [(at, value) for at, value in self._losses if at <= step - STALLED_SHARE * self._total_steps]
        if not before or loss < (1 - LEAST_GAIN) * before[-1][1]:
            return None
        if self._unigram_loss is None:
            self._unigram_loss = self._find_unigram_loss()
        if loss < NEAR_UNIGRAM * self._unigram_loss:
            return None
        self._is_told = True
        return (
            f"The masked-LM loss is on a plateau: {loss:.2f} at step {step:,} and {before[-1][1]:.2f} at "
            f"{before[-1][0]:,}; token frequencies alone give {self._unigram_loss:.2f}. "
            f"Try {', '.join([*self._remedies, 'smaller batches or more steps'])}."
        )


def find_unigram_loss(records: PretrainingRecords) -> float:
    """Return the unigram loss, in nats: the cross-entropy of masked tokens if only their frequencies are known.

    It is the entropy of the masked tokens of up to `SAMPLE_RECORDS` records.
    """
    step = max(1, -(-len(records) // SAMPLE_RECORDS))
    masked = [
        record["masked_lm_ids"][record["masked_lm_weights"] > 0]
        for record in (records[number] for number in range(0, len(records), step))
    ]
    counts = np.unique(np.concatenate(masked), return_counts=True)[1]
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())
