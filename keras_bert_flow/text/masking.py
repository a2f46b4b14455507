"""Choose the tokens to predict and hide them. This is the only place where masks are made.

What is hidden together is a unit: a token, a word (google-research's whole-word masking) or a span of words (SpanBERT).
Each token of a word is hidden, changed or kept on its own, as google-research does it; a span shares one draw.

Source: Devlin et al. 2019, section 3.1, task 1; google-research/bert, `create_masked_lm_predictions`.
"""

from dataclasses import dataclass

import numpy as np

from keras_bert_flow.text.spans import choose_spans
from keras_bert_flow.text.tokenizer import WordPieceTokenizer

TOKEN, WORD, SPAN = "token", "word", "span"
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
        unit: what is chosen as a whole: `token`, `word` or `span`.
    """

    masked_fraction: float
    max_predictions: int
    mask_id: int
    special_ids: tuple[int, ...]
    starts_word: np.ndarray
    unit: str = TOKEN

    @classmethod
    def of(
        cls, tokenizer: WordPieceTokenizer, masked_fraction: float, max_predictions: int, unit: str = TOKEN
    ) -> "MaskingRule":
        """Return the rule for the pieces of a tokenizer."""
        special_ids = (tokenizer.cls_id, tokenizer.sep_id)
        return cls(masked_fraction, max_predictions, tokenizer.mask_id, special_ids, tokenizer.starts_word, unit)


@dataclass(frozen=True)
class MaskedInstance:
    """One instance with its special tokens and its masks, without padding.

    Attributes:
        token_ids: int, (length,). [CLS] A [SEP] B [SEP], or [CLS] text [SEP], with some tokens replaced.
        segment_ids: int, (length,). 0 for [CLS] A [SEP], 1 for B [SEP].
        mask_positions: int, (predictions,), ascending.
        mask_ids: int, (predictions,). The original tokens at those positions.
        is_random_next: B is from another document (`mlm_nsp`), or A and B are swapped (`mlm_sop`).
    """

    token_ids: np.ndarray
    segment_ids: np.ndarray
    mask_positions: np.ndarray
    mask_ids: np.ndarray
    is_random_next: bool = False


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
    if rule.unit == SPAN:
        units = _choose_units(token_ids, rule, rng)
        positions = np.concatenate([*units, np.array([], np.int64)])
        draws = np.repeat(rng.random(len(units)), [len(unit) for unit in units])  # one draw for the whole span
    else:
        positions = choose_positions(token_ids, rule, rng)
        draws = rng.random(len(positions))
    mask_ids = token_ids[positions]
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
    if rule.unit == TOKEN:
        candidates, budget = _list_candidates(token_ids, rule)
        return np.sort(rng.permutation(candidates)[:budget])
    return np.sort(np.concatenate([*_choose_units(token_ids, rule, rng), np.array([], np.int64)]))


def _choose_units(token_ids: np.ndarray, rule: MaskingRule, rng: np.random.Generator) -> list[np.ndarray]:
    """Choose words or spans; return the positions of each."""
    candidates, budget = _list_candidates(token_ids, rule)
    words = _group_words(token_ids, candidates, rule.starts_word)
    if rule.unit == SPAN:
        chosen = choose_spans(words, budget, rng)
        return chosen or [words[index][:budget] for index in rng.permutation(len(words))[:1]]
    order = rng.permutation(len(words))
    chosen, left = [], budget
    for word in order:
        if len(words[word]) <= left:
            chosen.append(words[word])
            left -= len(words[word])
    return chosen or [words[index][:budget] for index in order[:1]]


def _list_candidates(token_ids: np.ndarray, rule: MaskingRule) -> tuple[np.ndarray, int]:
    """Return the positions that may be chosen, and how many to choose."""
    candidates = np.flatnonzero(np.all([token_ids != special for special in rule.special_ids], axis=0))
    return candidates, min(rule.max_predictions, max(1, round(len(token_ids) * rule.masked_fraction)))


def _group_words(token_ids: np.ndarray, candidates: np.ndarray, starts_word: np.ndarray) -> list[np.ndarray]:
    """Split positions before each piece that begins a word, and where a special token lies between two positions."""
    if not len(candidates):
        return []
    begins = starts_word[token_ids[candidates[1:]]] | (np.diff(candidates) > 1)
    return np.split(candidates, np.flatnonzero(begins) + 1)
