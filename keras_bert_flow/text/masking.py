"""Choose the tokens to predict and hide them. This is the only place where masks are made.

Source: Devlin et al. 2019, section 3.1, task 1; google-research/bert, `create_masked_lm_predictions`.
"""

from dataclasses import dataclass

import numpy as np

MASK_SHARE = 0.8  # of the chosen tokens become [MASK]
KEEP_SHARE = 0.1  # stay as they are; the rest become a random token of the whole vocabulary, special ones included


@dataclass(frozen=True)
class MaskingRule:
    """What masking needs to know besides the tokens.

    Attributes:
        masked_fraction: share of all tokens, [CLS] and [SEP] counted, that is chosen.
        max_predictions: most tokens chosen.
        mask_id: id of [MASK].
        special_ids: never chosen: [CLS] and [SEP].
        starts_word: bool, (vocabulary_size,). False for ## pieces.
        whole_word: choose all pieces of a word or none.
    """

    masked_fraction: float
    max_predictions: int
    mask_id: int
    special_ids: tuple[int, ...]
    starts_word: np.ndarray
    whole_word: bool = False


def mask_tokens(
    token_ids: np.ndarray, rule: MaskingRule, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hide a random choice of tokens.

    Args:
        token_ids: int, (length,). One instance with its special tokens, without padding.
        rule: shares and limits.
        rng: source of every choice.
    Returns:
        The tokens with the chosen ones replaced, (length,); the chosen positions, ascending; the original tokens there.
    """
    positions = choose_positions(token_ids, rule, rng)
    mask_ids = token_ids[positions]
    draws = rng.random(len(positions))
    random_ids = rng.integers(0, len(rule.starts_word), len(positions))
    unhidden = np.where(draws < MASK_SHARE + KEEP_SHARE, mask_ids, random_ids)
    replacements = np.where(draws < MASK_SHARE, rule.mask_id, unhidden)
    masked = token_ids.copy()
    masked[positions] = replacements
    return masked, positions, mask_ids


def choose_positions(token_ids: np.ndarray, rule: MaskingRule, rng: np.random.Generator) -> np.ndarray:
    """Choose `min(max_predictions, max(1, round(length × masked_fraction)))` positions, ascending.

    Whole words that do not fit what is left of that number are skipped, as in google-research/bert, so fewer may be
    chosen; where no word fits at all, the original chooses nothing and we take the first pieces of one word.
    """
    candidates = np.flatnonzero(np.all([token_ids != special for special in rule.special_ids], axis=0))
    budget = min(rule.max_predictions, max(1, round(len(token_ids) * rule.masked_fraction)))
    if not rule.whole_word:
        return np.sort(rng.permutation(candidates)[:budget])
    chosen: list[int] = []
    words = _group_words(token_ids, candidates, rule.starts_word)
    order = rng.permutation(len(words))
    for word in order:
        if len(chosen) + len(words[word]) <= budget:
            chosen.extend(words[word])
    if not chosen and words:
        chosen.extend(words[order[0]][:budget])
    return np.sort(np.array(chosen, np.int64))


def _group_words(token_ids: np.ndarray, candidates: np.ndarray, starts_word: np.ndarray) -> list[np.ndarray]:
    """Split positions before each piece that begins a word, and where a special token lies between two positions."""
    if not len(candidates):
        return []
    begins = starts_word[token_ids[candidates[1:]]] | (np.diff(candidates) > 1)
    return np.split(candidates, np.flatnonzero(begins) + 1)
