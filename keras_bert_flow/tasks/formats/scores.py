"""Read a number from a column of a table."""

import re
from typing import Any

import numpy as np

from keras_bert_flow.tasks.formats.rows import abridge
from keras_bert_flow.tasks.formats.tables import require_text

# What float() also accepts, such as 1_000, infinity or Arabic digits, is more likely a mistake.
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")

LARGEST = float(np.finfo(np.float32).max)


def read_score(place: str, column: str, value: Any, lowest: float = -np.inf, highest: float = np.inf) -> float:
    """Return the number that a column contains.

    Raises:
        ValueError: it is not a number, or not from `lowest` to `highest`.
    """
    require_text(place, column, value)
    spelt = value.strip()
    if not NUMBER.fullmatch(spelt) or abs(float(spelt)) > LARGEST:
        raise ValueError(
            f"{place}: column {column!r} must hold a finite number, with a point for its decimals. "
            f"Received: {abridge([repr(spelt)])}. Correct the row."
        )
    score = float(spelt)
    if not lowest <= score <= highest:
        raise ValueError(
            f"{place}: a score must be from {lowest} to {highest}. Received: {spelt}. "
            "Correct the row, or `lowest` and `highest`."
        )
    return score


def require_different_scores(scores: list[float], place: str) -> None:
    """Raise ValueError if all scores of a training table, which begins at `place`, are equal."""
    if np.ptp(scores) == 0:
        raise ValueError(
            "A training table must have at least two different scores. "
            f"Received: {len(scores)} examples from {place}, where all are {scores[0]}. "
            "Check the label column, or read more rows."
        )
