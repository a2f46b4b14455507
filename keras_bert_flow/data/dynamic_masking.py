"""Dynamic masking: new masks for the records in each epoch, a function of (seed, epoch, index).

The records are the same as for static masking: hidden tokens are restored from `masked_lm_ids`, and the vocabulary next
to the records tells which pieces start a word. So nothing is stored twice, and a resumed run sees the same masks.

Source: Liu et al. 2019 (RoBERTa), section 4.1; arXiv:1907.11692.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.data.order import RandomAccess
from keras_bert_flow.text.masking import TOKEN, MaskingRule, count_masks, mask_rows
from keras_bert_flow.text.randomness import keyed_generator
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file, read_tokenizer_file

Features = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class NumberedRecords:
    """Records with their index, which seeds their masks."""

    records: RandomAccess

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, index: int) -> tuple[int, Features]:
        return index, self.records[index]


@dataclass(frozen=True)
class DynamicMasking:
    """Mask numbered records anew at each position of an infinite dataset.

    Attributes:
        rule: how tokens are hidden: the rule of the records, or one with another masked fraction.
        length: number of records in an epoch.
        seed: of every random choice.
    """

    rule: MaskingRule
    length: int
    seed: int

    def __call__(self, place: int, numbered: tuple[int, Features]) -> Features:
        index, features = numbered
        rng = keyed_generator(self.seed, "dynamic masking", place // self.length, index)
        return mask_again(features, self.rule, rng)


def read_masking_rule(folder: str | Path, config: Mapping[str, Any]) -> MaskingRule:
    """Return the masking rule of the records in a folder.

    Args:
        folder: the published records.
        config: the config in their manifest.
    Raises:
        FileNotFoundError: there is no tokenizer next to the records.
        ValueError: the manifest does not give the number of tokens to mask.
    """
    missing = [name for name in ("masked_fraction", "max_predictions") if name not in config]
    if missing:
        raise ValueError(
            f"Dynamic masking needs {' and '.join(missing)} in the manifest. Received: {folder}, without. "
            "Build the records again, or use pretraining.masking=static."
        )
    tokenizer = read_tokenizer_file(find_tokenizer_file(folder), config.get("cased", False))
    return MaskingRule.of(
        tokenizer, config["masked_fraction"], config["max_predictions"], config.get("mask_unit", TOKEN)
    )


def with_fraction(rule: MaskingRule, masked_fraction: float, length: int) -> MaskingRule:
    """Return a masking rule with another masked fraction, for instances of up to `length` tokens."""
    return replace(rule, masked_fraction=masked_fraction, max_predictions=count_masks(length, masked_fraction))


def mask_again(features: Features, rule: MaskingRule, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return the features of a record with new masks; features unrelated to masks are unchanged."""
    masked = mask_rows(restore_tokens(features)[None], features["input_mask"].sum(keepdims=True), rule, rng)
    return dict(features) | {
        "input_ids": masked.token_ids[0],
        "masked_lm_positions": masked.positions[0],
        "masked_lm_ids": masked.mask_ids[0],
        "masked_lm_weights": (np.arange(rule.max_predictions) < masked.counts[0]).astype(np.float32),
    }


def restore_tokens(features: Features) -> np.ndarray:
    """Return the tokens of a record before masking, int, (sequence_length,), padding included."""
    token_ids = np.array(features["input_ids"])
    is_real = features["masked_lm_weights"] > 0
    token_ids[features["masked_lm_positions"][is_real]] = features["masked_lm_ids"][is_real]
    return token_ids
