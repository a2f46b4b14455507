"""Masking: choose tokens, words or spans to predict, and mask them. The only place where masks are made.

The masking unit is a token, a word (google-research's whole-word masking) or a span of words (SpanBERT), or a merged
span, for the span boundary objective. Each token of a word is masked, replaced or kept on its own, as in
google-research/bert; the tokens of a span share one draw.

Source: Devlin et al. 2019, section 3.1, task 1; google-research/bert, `create_masked_lm_predictions`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

# Span masking: choose spans of whole words to be masked together.
#
# Source: Joshi et al. 2020 (SpanBERT), section 3.1; arXiv:1907.10529. "Clip" there means that longer draws are redrawn:
# only then is the mean 3.8 words, as the paper says, and their code does so; truncating them to 10 would make it 4.5.
#
# Two rules differ. A span begins at any word with equal probability (their code draws a token, so longer words are more
# likely). A span shrinks by whole words to what is left of the budget (their code cuts the last one inside a word).
# `choose_merged_spans` follows their code in both.

SPAN_CONTINUES = 0.8  # 1 - p of the geometric distribution
LONGEST_SPAN = 10  # words
SPAN_LENGTH_SHARES = SPAN_CONTINUES ** np.arange(LONGEST_SPAN)  # of 1, 2, ... words
SPAN_LENGTH_SHARES /= SPAN_LENGTH_SHARES.sum()


def choose_spans(words: Sequence[np.ndarray], budget: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Choose spans until `budget` tokens are spent or no word fits.

    Args:
        words: the positions of each word, ascending. No span crosses a gap between two words, which is a special token.
        budget: most tokens to choose.
        rng: source of every random choice.
    Returns:
        The positions of each span, in the order of the text. Spans do not overlap, but may be adjacent.
    """
    is_taken = np.zeros(len(words), bool)
    spans: list[np.ndarray] = []
    starts = rng.permutation(len(words))
    lengths = _draw_lengths(len(words), rng)
    for start, length in zip(starts, lengths, strict=True):
        end, tokens = _extend_span(words, is_taken, int(start), int(length), budget)
        if end > start:
            is_taken[start:end] = True
            spans.append(np.concatenate(words[start:end]))
            budget -= tokens
        if not budget:
            break
    return sorted(spans, key=lambda span: span[0])


def _extend_span(
    words: Sequence[np.ndarray], is_taken: np.ndarray, start: int, length: int, budget: int
) -> tuple[int, int]:
    """Return the word after the span and the tokens in it."""
    tokens, end = 0, start
    while end < min(start + length, len(words)) and not is_taken[end] and tokens + len(words[end]) <= budget:
        if end > start and words[end][0] != words[end - 1][-1] + 1:
            break
        tokens += len(words[end])
        end += 1
    return end, tokens


def choose_merged_spans(words: Sequence[np.ndarray], budget: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Choose spans by a token each, and merge those that overlap or touch, until `budget` tokens are spent.

    A span begins at the word of its token, so long words are chosen more often. A token in an earlier span is drawn
    again, which is to take the next of a random order. The last span may end inside a word.

    Args:
        words, budget, rng: as for `choose_spans`.
    Returns:
        The positions of each merged span, in the order of the text: `budget` of them, or all. Between two spans there
        is a token that is not chosen.
    Source: Joshi et al. 2020 (SpanBERT), section 3.1, and facebookresearch/SpanBERT, `PairWithSpanMaskingScheme`.
    """
    if not words:
        return []
    positions = np.concatenate(words)
    sizes = np.array([len(word) for word in words])
    ends = np.cumsum(sizes)
    word_of = np.repeat(np.arange(len(words)), sizes)
    follows = np.array([word[0] - 1 for word in words[1:]]) == positions[ends[:-1] - 1]  # no special token in between
    text_ends = np.append(np.flatnonzero(~follows) + 1, len(words))  # the words after which a text ends
    text_end_of = text_ends[np.searchsorted(text_ends, np.arange(len(words)), side="right")]
    is_chosen, left = np.zeros(len(positions), bool), budget
    anchors = rng.permutation(len(positions))
    lengths = _draw_lengths(len(positions), rng)
    for anchor, length in zip(anchors.tolist(), lengths.tolist(), strict=True):
        if left <= 0:
            break
        if is_chosen[anchor]:
            continue
        word = word_of[anchor]
        last = min(word + length, text_end_of[word]) - 1
        span = np.arange(ends[word] - sizes[word], ends[last])
        new = span[~is_chosen[span]][:left]
        is_chosen[new] = True
        left -= len(new)
    chosen = positions[is_chosen]
    return np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1) if len(chosen) else []


def _draw_lengths(count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw lengths of spans, in words, int, (count,)."""
    return 1 + np.searchsorted(np.cumsum(SPAN_LENGTH_SHARES)[:-1], rng.random(count), side="right")


TOKEN, WORD, SPAN = "token", "word", "span"
MERGED_SPAN = "merged span"  # what objectives with spans take in place of `span`
MASK_SHARE = 0.8  # of the chosen tokens become [MASK]
KEEP_SHARE = 0.1  # are kept; the rest become a random token of the whole vocabulary, special ones included


@dataclass(frozen=True)
class MaskingRule:
    """Parameters of masking.

    Attributes:
        masked_fraction: share of tokens that is chosen, counting [CLS] and [SEP].
        max_predictions: most tokens chosen.
        mask_id: id of [MASK].
        special_ids: never chosen: [CLS] and [SEP].
        starts_word: bool, (vocabulary_size,). False for ## pieces.
        unit: masking unit: `token`, `word`, `span` or `merged span`.
    """

    masked_fraction: float
    max_predictions: int
    mask_id: int
    special_ids: tuple[int, ...]
    starts_word: np.ndarray
    unit: str = TOKEN

    @classmethod
    def of(cls, tokenizer: Tokenizer, masked_fraction: float, max_predictions: int, unit: str = TOKEN) -> "MaskingRule":
        """Return the rule for a tokenizer."""
        special_ids = (tokenizer.cls_id, tokenizer.sep_id)
        return cls(masked_fraction, max_predictions, tokenizer.mask_id, special_ids, tokenizer.starts_word, unit)


def count_masks(length: int, masked_fraction: float) -> int:
    """Return the number of masked tokens in a full instance."""
    return max(1, round(length * masked_fraction))


@dataclass(frozen=True)
class MaskedRows:
    """Masked instances, as matrices padded with zeros.

    Attributes:
        token_ids: int, (rows, length). With the chosen tokens replaced.
        positions: int, (rows, max_predictions). The columns of the chosen tokens, ascending.
        mask_ids: int, (rows, max_predictions). The original tokens there.
        counts: int, (rows,). Number of chosen tokens.
    """

    token_ids: np.ndarray
    positions: np.ndarray
    mask_ids: np.ndarray
    counts: np.ndarray

    @property
    def span_ids(self) -> np.ndarray:
        """The number of the span of each chosen token; see `number_spans`."""
        return number_spans(self.positions, self.counts)


def number_spans(positions: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Number the spans of each row, which are the runs of neighbouring chosen tokens once spans are merged.

    Args:
        positions: int, (rows, max_predictions). The columns of the chosen tokens, ascending.
        counts: int, (rows,). Number of chosen tokens.
    Returns:
        int, (rows, max_predictions): 1, 2, ... for the tokens of each span, 0 for filler.
    """
    starts = np.ones(positions.shape, bool)
    starts[:, 1:] = np.diff(positions, axis=1) != 1
    is_real = np.arange(positions.shape[1]) < counts[:, None]
    return np.cumsum(starts, axis=1) * is_real


def mask_rows(token_ids: np.ndarray, lengths: np.ndarray, rule: MaskingRule, rng: np.random.Generator) -> MaskedRows:
    """Mask a random choice of the tokens of each row.

    In each row, `min(max_predictions, max(1, round(length × masked_fraction)))` tokens are chosen. Whole words that do
    not fit into what is left of that budget are skipped, as in google-research/bert, so fewer may be chosen. If no word
    fits at all, the original chooses nothing; here the first pieces of one word are chosen. Merged spans fill it.

    Args:
        token_ids: int, (rows, length). Instances with their special tokens, padded; not modified.
        lengths: int, (rows,). Tokens of each row.
        rule: shares and limits.
        rng: source of every random choice.
    """
    is_free = np.arange(token_ids.shape[1]) < lengths[:, None]  # may be chosen
    for special in rule.special_ids:
        is_free &= token_ids != special
    budgets = np.minimum(rule.max_predictions, np.maximum(1, np.rint(lengths * rule.masked_fraction))).astype(np.int64)
    choose = {TOKEN: _choose_tokens, WORD: _choose_words}.get(rule.unit, _choose_spans)
    is_chosen, draws = choose(token_ids, is_free, budgets, rule, rng)
    return _replace_tokens(token_ids, is_chosen, draws, rule, rng)


# Each chooser takes the tokens, which of them may be chosen, bool, (rows, length), and the budget of each row, (rows,).
# It returns the chosen ones, bool, (rows, length), and a draw from [0, 1) for each of them, row by row.
_Choice = tuple[np.ndarray, np.ndarray]


def _choose_tokens(token_ids, is_free, budgets, rule: MaskingRule, rng: np.random.Generator) -> _Choice:
    places = np.arange(is_free.shape[1], dtype=np.uint64)
    bits = np.uint64(int(places[-1]).bit_length())
    # A random order for each row: random numbers whose lowest bits are the position, so no two are equal.
    keys = rng.integers(0, 2**64, is_free.shape, np.uint64) >> bits << bits | places
    keys[~is_free] = np.uint64(2**64 - 1)
    most = min(int(budgets.max(initial=1)), len(places))
    last = np.minimum(budgets, most) - 1
    lowest = np.sort(np.partition(keys, most - 1, axis=1)[:, :most], axis=1)
    is_chosen = (keys <= np.take_along_axis(lowest, last[:, None], axis=1)) & is_free
    return is_chosen, rng.random(np.count_nonzero(is_chosen))


def _choose_words(token_ids, is_free, budgets, rule: MaskingRule, rng: np.random.Generator) -> _Choice:
    rows, starts = np.arange(len(is_free)), _find_words(token_ids, is_free, rule)
    words = int(starts.sum(axis=1).max(initial=0))
    word_of = np.where(is_free, np.cumsum(starts, axis=1) - 1, words)  # the last column below is for other tokens
    sizes = np.zeros((len(is_free), words + 1), np.int64)
    np.add.at(sizes, (rows[:, None], word_of), is_free)
    order = np.argsort(rng.random((len(is_free), words)) + (sizes[:, :words] == 0), axis=1)  # empty ones come last
    is_word_chosen, left = np.zeros(sizes.shape, bool), budgets.copy()
    for word in order.T:
        size = sizes[rows, word]
        is_word_chosen[rows, word] = fits = (size > 0) & (size <= left)
        left -= size * fits
        if not left.any():
            break
    is_chosen = np.take_along_axis(is_word_chosen, word_of, axis=1)
    for row in np.flatnonzero((left == budgets) & is_free.any(axis=1)):  # no word fits
        is_chosen[row, np.flatnonzero(word_of[row] == order[row, 0])[: budgets[row]]] = True
    return is_chosen, rng.random(np.count_nonzero(is_chosen))


def _choose_spans(token_ids, is_free, budgets, rule: MaskingRule, rng: np.random.Generator) -> _Choice:
    choose = {SPAN: choose_spans, MERGED_SPAN: choose_merged_spans}[rule.unit]
    starts, is_chosen, draws = _find_words(token_ids, is_free, rule), np.zeros(is_free.shape, bool), []
    for row, budget in enumerate(budgets.tolist()):
        free = np.flatnonzero(is_free[row])
        words = np.split(free, np.flatnonzero(starts[row, free])[1:]) if len(free) else []
        spans = choose(words, budget, rng)
        spans = spans or [words[word][:budget] for word in rng.permutation(len(words))[:1]]  # no word fits
        for span in spans:
            is_chosen[row, span] = True
        draws.append(np.repeat(rng.random(len(spans)), [len(span) for span in spans]))  # one for the whole span
    return is_chosen, np.concatenate(draws)


def _find_words(token_ids: np.ndarray, is_free: np.ndarray, rule: MaskingRule) -> np.ndarray:
    """Return which tokens begin a word: no ## pieces, except after a special token."""
    follows = np.zeros(is_free.shape, bool)
    follows[:, 1:] = is_free[:, :-1]
    return is_free & (rule.starts_word[token_ids] | ~follows)


def _replace_tokens(token_ids, is_chosen, draws, rule: MaskingRule, rng: np.random.Generator) -> MaskedRows:
    rows, columns = np.nonzero(is_chosen)  # row by row, ascending
    mask_ids = token_ids[rows, columns]
    random_ids = rng.integers(0, len(rule.starts_word), len(rows))
    changed = np.where(draws < MASK_SHARE + KEEP_SHARE, mask_ids, random_ids)
    masked = token_ids.copy()
    masked[rows, columns] = np.where(draws < MASK_SHARE, rule.mask_id, changed)
    counts = np.bincount(rows, minlength=len(token_ids))
    slots = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    positions, ids = np.zeros((2, len(token_ids), rule.max_predictions), token_ids.dtype)
    found = MaskedRows(masked, positions, ids, counts)
    found.positions[rows, slots], found.mask_ids[rows, slots] = columns, mask_ids
    return found
