"""Span masking: choose spans of whole words to be masked together.

Source: Joshi et al. 2020 (SpanBERT), section 3.1; arXiv:1907.10529. "Clip" there means that longer draws are redrawn:
only then is the mean 3.8 words, as the paper says, and their code does so; truncating them to 10 would make it 4.5.

Two rules differ. A span begins at any word with equal probability (their code draws a token, so longer words are more
likely). A span shrinks by whole words to what is left of the budget (their code cuts the last one inside a word).
"""

from collections.abc import Sequence

import numpy as np

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
    for start, length in zip(starts, draw_span_lengths(len(words), rng), strict=True):
        end, tokens = _extend_span(words, is_taken, int(start), int(length), budget)
        if end > start:
            is_taken[start:end] = True
            spans.append(np.concatenate(words[start:end]))
            budget -= tokens
        if not budget:
            break
    return sorted(spans, key=lambda span: span[0])


def draw_span_lengths(count: int, rng: np.random.Generator) -> np.ndarray:
    """Draw lengths in words, int, (count,): geometric with p = 0.2, at most 10."""
    return 1 + np.searchsorted(np.cumsum(SPAN_LENGTH_SHARES)[:-1], rng.random(count), side="right")


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
