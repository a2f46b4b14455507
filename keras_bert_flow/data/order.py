"""Shuffle records by a pseudorandom permutation with random access, and mask them anew in each epoch.

Source of the permutation: Black and Rogaway 2002, Ciphers with arbitrary finite domains, section 3 and figure 2 (a
Feistel network on the next power of two, with cycle walking: an index beyond the records is permuted again).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from keras_bert_flow.records.example import SPAN_IDS
from keras_bert_flow.text.masking import MERGED_SPAN, TOKEN, MaskingRule, mask_rows
from keras_bert_flow.text.objectives import DEFAULT
from keras_bert_flow.text.objectives.objective import find_objective
from keras_bert_flow.text.rows import keyed_generator, keyed_number
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

ROWS = 1 << 50  # practically infinite; Grain's own infinite length is too large for batches of one
_ROUNDS = 6  # with 4, some orders of four records are more frequent than others
_LEAST_BITS = 6  # with 3, some orders of five records are
_WORD = (1 << 64) - 1
# Odd constants that propagate a change of one bit to the upper half of a word: Steele et al. 2014, SplitMix64.
_FIRST_FACTOR, _SECOND_FACTOR = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9


def permute(place: int, length: int, rounds: Sequence[tuple[int, int]]) -> int:
    """Return the number at a place of a pseudorandom permutation of range(length), determined by keys.

    Args:
        length: at least 1, at most 2 ** 62.
        rounds: pairs of 64-bit keys.
    """
    bits = max(_LEAST_BITS, (length - 1).bit_length())
    right_bits = bits // 2
    left_mask, right_mask = (1 << bits - right_bits) - 1, (1 << right_bits) - 1
    number = place
    while True:
        left, right = number >> right_bits, number & right_mask
        for left_key, right_key in rounds:
            left ^= _mix(right ^ left_key) & left_mask
            right ^= _mix(left ^ right_key) & right_mask
        number = left << right_bits | right
        if number < length:
            return number


def _mix(word: int) -> int:
    word = word * _FIRST_FACTOR & _WORD
    return ((word ^ word >> 32) * _SECOND_FACTOR & _WORD) >> 32


class RandomAccess(Protocol):
    """Records with random access by index."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Shuffled:
    """Records repeated infinitely and reshuffled in each epoch, a function of (seed, position).

    Args:
        numbered: whether each comes as (index, record), for `DynamicMasking`: the index seeds its masks.
    Raises:
        ValueError: there are no records.
    """

    def __init__(self, records: RandomAccess, seed: int, numbered: bool = False):
        if not len(records):
            raise ValueError("There must be something to train on. Received: none. Give more text.")
        self._records, self._seed, self._numbered, self._length = records, seed, numbered, len(records)
        self._rounds_of = lru_cache(maxsize=2)(self._make_rounds)

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, place: int) -> Any:
        epoch, index = divmod(place, self._length)
        number = permute(index, self._length, self._rounds_of(epoch))
        return (number, self._records[number]) if self._numbered else self._records[number]

    def _make_rounds(self, epoch: int) -> list[tuple[int, int]]:
        keys = [keyed_number("order", self._seed, epoch, number) for number in range(_ROUNDS)]
        return list(zip(keys[::2], keys[1::2], strict=True))


# Dynamic masking: new masks for the records in each epoch, a function of (seed, epoch, index).
#
# The records are the same as for static masking: hidden tokens are restored from `masked_lm_ids`, and the vocabulary
# next to the records tells which pieces start a word. So nothing is stored twice, and a resumed run sees the same
# masks.
#
# Source: Liu et al. 2019 (RoBERTa), section 4.1; arXiv:1907.11692.

Features = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class DynamicMasking:
    """Mask numbered records anew at each position of an infinite dataset.

    Attributes:
        rule: how tokens are hidden: the rule of the records, or one with another masked fraction.
        length: number of records in an epoch.
        seed: of every random choice.
        end: (fraction, position): the masked fraction changes linearly from that of the rule to this one, and stays.
        least: masked diffusion: each record draws its fraction uniformly from this one to that of the rule, all chosen
            tokens become [MASK], and each of them weighs the tokens of the record by the number chosen: 1 / t for a
            realised fraction t, the weight of the bound on the likelihood (NELBO) for rates that are uniform. So the
            weights of a record sum to its length, whatever its fraction.
            Source: Kosmopoulou et al. 2025, arXiv:2509.05056; Sahoo et al. 2024 (MDLM), arXiv:2406.07524, section 3.
    """

    rule: MaskingRule
    length: int
    seed: int
    end: tuple[float, int] | None = None
    least: float | None = None

    def __call__(self, place: int, numbered: tuple[int, Features]) -> Features:
        index, features = numbered
        rng = keyed_generator(self.seed, "dynamic masking", place // self.length, index)
        if self.least is None:
            return mask_again(features, self.find_rule(place), rng)
        fraction = rng.uniform(self.least, self.rule.masked_fraction)
        return weigh_by_rate(mask_again(features, replace(self.rule, masked_fraction=fraction), rng), self.rule.mask_id)

    def find_rule(self, place: int) -> MaskingRule:
        """Return the rule at a position."""
        if self.end is None:
            return self.rule
        fraction, last = self.end
        share = min(1.0, place / last)
        return replace(self.rule, masked_fraction=(1 - share) * self.rule.masked_fraction + share * fraction)


def make_masking_rule(folder: str | Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> MaskingRule:
    """Return the masking rule of the records in a folder.

    Args:
        folder: the published records.
        config: the config in their manifest.
        tokenizer: the one that they were made with.
    Raises:
        ValueError: the manifest does not give the number of tokens to mask.
    """
    missing = [name for name in ("masked_fraction", "max_predictions") if name not in config]
    if missing:
        raise ValueError(
            f"Dynamic masking needs {' and '.join(missing)} in the manifest. Received: {folder}, without. "
            "Build the records again, or use pretraining.masking=static."
        )
    unit = config.get("mask_unit", TOKEN)
    rule = MaskingRule.of(tokenizer, config["masked_fraction"], config["max_predictions"], unit)
    return find_objective(config.get("objective", DEFAULT)).find_masking(rule)


def mask_again(features: Features, rule: MaskingRule, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the features of a record with new masks; features unrelated to masks are unchanged."""
    masked = mask_rows(
        restore_tokens(features)[None], np.count_nonzero(features["input_mask"], keepdims=True), rule, rng
    )
    changed = {
        "input_ids": masked.token_ids[0],
        "masked_lm_positions": masked.positions[0],
        "masked_lm_ids": masked.mask_ids[0],
        "masked_lm_weights": (np.arange(rule.max_predictions) < masked.counts[0]).astype(np.float32),
    }
    if rule.unit == MERGED_SPAN:
        changed[SPAN_IDS] = masked.span_ids[0]
    return dict(features) | changed


def weigh_by_rate(features: Features, mask_id: int) -> dict[str, np.ndarray]:
    """Return the features of a masked record with [MASK] at all predictions, whose weights sum to its length."""
    is_real = features["masked_lm_weights"] > 0
    token_ids = np.array(features["input_ids"])
    token_ids[features["masked_lm_positions"][is_real]] = mask_id
    each = np.count_nonzero(features["input_mask"]) / max(1, int(is_real.sum()))
    return dict(features) | {"input_ids": token_ids, "masked_lm_weights": (is_real * each).astype(np.float32)}


def restore_tokens(features: Features) -> np.ndarray:
    """Return the tokens of a record before masking, int, (sequence_length,), padding included."""
    token_ids = np.array(features["input_ids"])
    is_real = features["masked_lm_weights"] > 0
    token_ids[features["masked_lm_positions"][is_real]] = features["masked_lm_ids"][is_real]
    return token_ids
