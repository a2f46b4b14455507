"""Detect a plateau of the pre-training loss near the unigram loss."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from keras_bert_flow.config.pretraining import PretrainingConfig
from keras_bert_flow.data.pretraining_records import PretrainingRecords

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
    """

    def __init__(
        self,
        find_unigram_loss: Callable[[], float],
        settings: PretrainingConfig,
        earlier: Sequence[Mapping[str, Any]] = (),
    ):
        self._total_steps = settings.total_steps
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
        if loss is None or self._is_told:
            return None
        step = line["step"]
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
