"""Measure how often a masked language model prefers the acceptable sentence of a minimal pair.

The results, in `metrics.json` as `minimal_pairs`, in plain Python values:

    pairs: number of pairs
    accuracy: mean over the pairs of 1 where the acceptable sentence has the higher pseudo-log-likelihood, 1/2 where
        both have the same, else 0; by chance 0.5
    standard_error: of that mean: the standard deviation over the pairs / sqrt(pairs); None for fewer than two
    ties: pairs whose sentences have the same pseudo-log-likelihood, such as the same tokens
    limit: most pairs of a phenomenon, None if all were scored
    phenomena, linguistics_terms, fields: group (a `UID`, `linguistics_term` or `field` of the file) → pairs, accuracy,
        standard_error and ties, in the order of the file; empty if no line names one
"""

import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.data.tasks import BATCH_POSITIONS
from keras_bert_flow.evaluation.questions import read_pairs
from keras_bert_flow.prediction.masked_lm import SentenceScorer
from keras_bert_flow.tasks.minimal_pairs import GROUPINGS, EncodedPairs


def evaluate_minimal_pairs(
    model: str | Path,
    path: str | Path,
    limit: int | None = None,
    batch_positions: int = BATCH_POSITIONS,
    advance: Callable[[float], None] = lambda count: None,
    encoded: EncodedPairs | None = None,
) -> dict[str, Any]:
    """Score a masked language model on minimal pairs by pseudo-log-likelihood.

    Args:
        model: model directory with a masked-LM head.
        path: .jsonl in the format of BLiMP, possibly packed; see `read_minimal_pairs`.
        limit: score only this many pairs of each phenomenon, the first ones. Default: all.
        batch_positions: token positions of a batch.
        advance: called with the number of further masked copies of sentences that are scored; one per token.
        encoded: what `read_pairs` returns for these arguments, if already called.
    Returns:
        The results, as the module describes them.
    Raises:
        FileNotFoundError, ValueError: as for `read_pairs`, or the weights are unusable.
    Example:
        >>> results = kbf.evaluate_minimal_pairs("model", "pairs.jsonl")
        >>> 0 <= results["accuracy"] <= 1
        True
    """
    encoded = encoded or read_pairs(model, path, limit)
    scorer = SentenceScorer(model, batch_positions)
    scores = scorer.score(encoded.sentences, lambda batches: _tell(batches, advance))
    return summarise_pairs(encoded, scores) | {"limit": limit}


def count_masked_copies(encoded: EncodedPairs) -> int:
    """Return how many masked copies of sentences are scored; equal sentences are scored once."""
    return sum(len(token_ids) - 2 for token_ids in encoded.sentences)


def summarise_pairs(encoded: EncodedPairs, scores: np.ndarray) -> dict[str, Any]:
    """Compare the scores of each pair, and summarise them over all pairs and over each group.

    Args:
        scores: float, (sentences,).
    """
    good, bad = scores[encoded.good], scores[encoded.bad]
    points = np.where(good == bad, 0.5, good > bad)  # (pairs,)
    groups = {}
    for grouping in GROUPINGS:
        members: dict[str, list[int]] = {}
        for number, pair in enumerate(encoded.pairs):
            if (name := pair.groups[grouping]) is not None:
                members.setdefault(name, []).append(number)
        groups[grouping] = {name: _summarise(points[numbers]) for name, numbers in members.items()}
    return _summarise(points) | groups


def _summarise(points: np.ndarray) -> dict[str, Any]:
    """Return the figures of some pairs; a point is 1 if the acceptable sentence wins, and one half for a tie."""
    error = float(points.std(ddof=1)) / math.sqrt(len(points)) if len(points) > 1 else None
    return {
        "pairs": len(points),
        "accuracy": float(points.mean()),
        "standard_error": error,
        "ties": int((points == 0.5).sum()),
    }


def _tell(batches: Sequence, advance: Callable[[float], None]) -> Iterator:
    for rows, width in batches:
        yield rows, width
        advance(len(rows))
