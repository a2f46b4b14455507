"""Merged spans, drawn as in SpanBERT: what is chosen, how often, and its numbers."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from keras_bert_flow.text.masking import (
    LONGEST_SPAN,
    MERGED_SPAN,
    SPAN_LENGTH_SHARES,
    MaskingRule,
    choose_merged_spans,
    mask_rows,
    number_spans,
)
from tests.text.test_spans import make_words

pytestmark = pytest.mark.any_backend


def choose_by_redrawing(sizes, budget, rng):
    """Return the positions that are chosen, from 1, as SpanBERT's description has it: draw again what is chosen."""
    words = make_words(sizes)
    total = sum(sizes)
    word_of = np.repeat(np.arange(len(sizes)), sizes)
    chosen = set()
    while len(chosen) < min(budget, total):
        length = 1 + rng.choice(LONGEST_SPAN, p=SPAN_LENGTH_SHARES)
        token = int(rng.integers(1, total + 1))
        if token in chosen:
            continue
        word = word_of[token - 1]
        for position in np.concatenate(words[word : word + length]):
            if len(chosen) < budget:
                chosen.add(int(position))
    return tuple(sorted(chosen))


def test_merged_spans_are_drawn_as_by_redrawing():
    sizes, budget, rng = [1, 3, 2, 1], 3, np.random.default_rng(1)
    ours = Counter(
        tuple(np.concatenate(choose_merged_spans(make_words(sizes), budget, rng)).tolist()) for _ in range(10_000)
    )
    theirs = Counter(choose_by_redrawing(sizes, budget, rng) for _ in range(10_000))
    assert ours.keys() == theirs.keys()
    table = np.array([[counts[choice] for choice in ours] for counts in (ours, theirs)])
    assert stats.chi2_contingency(table).pvalue > 0.001


def test_merged_spans_begin_at_words_by_their_tokens():
    # With a budget of one token it is the first of the word that was drawn.
    sizes, rng = np.array([1, 2, 3, 4]), np.random.default_rng(2)
    words, counts = make_words(sizes), Counter()
    for _ in range(10_000):
        ((position,),) = choose_merged_spans(words, 1, rng)
        counts[int(position)] += 1
    observed = [counts[int(word[0])] for word in words]
    assert stats.chisquare(observed, 10_000 * sizes / sizes.sum()).pvalue > 0.001


@pytest.mark.parametrize("budget", [1, 2, 7, 30, 10_000])
def test_merged_spans_fill_the_budget_and_do_not_touch(budget):
    rng = np.random.default_rng(3)
    for _ in range(100):
        words = make_words(rng.integers(1, 5, 40), gaps=(13, 14, 30))
        spans = choose_merged_spans(words, budget, rng)
        everything, chosen = np.concatenate(words), np.concatenate(spans)
        assert len(chosen) == min(budget, len(everything)) and np.isin(chosen, everything).all()
        assert all(np.all(np.diff(span) == 1) for span in spans)
        assert all(after[0] > before[-1] + 1 for before, after in zip(spans[:-1], spans[1:], strict=True))
        assert {int(span[0]) for span in spans} <= {int(word[0]) for word in words}
        assert len({int(span[-1]) for span in spans} - {int(word[-1]) for word in words}) <= 1  # where the budget ends


def test_merged_spans_stop_at_special_tokens():
    # Three texts of a word each: every pair is as likely. A span over a special token would prefer neighbours.
    words, rng, pairs = make_words([1] * 3, gaps=(1, 2)), np.random.default_rng(4), Counter()
    for _ in range(3000):
        pairs[tuple(int(position) for (position,) in choose_merged_spans(words, 2, rng))] += 1
    assert set(pairs) == {(1, 3), (1, 5), (3, 5)}
    assert stats.chisquare(list(pairs.values())).pvalue > 0.001


def test_merged_spans_of_no_words_are_none():
    assert choose_merged_spans([], 5, np.random.default_rng(0)) == []


def test_spans_are_numbered_by_runs():
    positions = np.array([[1, 2, 5, 6, 7, 9], [3, 5, 6, 0, 0, 0], [0] * 6])
    expected = [[1, 1, 2, 2, 2, 3], [1, 2, 2, 0, 0, 0], [0] * 6]
    assert number_spans(positions, np.array([6, 3, 0])).tolist() == expected


def test_a_merged_span_shares_its_replacement():
    rows = np.tile(np.arange(100, 160), (300, 1))
    rows[:, 0], rows[:, -1] = 2, 3
    many = np.ones(1 << 22, bool)  # so that no random token is [MASK] or the original
    rule = MaskingRule(0.3, 18, 4, (2, 3), many, MERGED_SPAN)
    masked = mask_rows(rows, np.full(300, 60), rule, np.random.default_rng(5))
    shown = np.take_along_axis(masked.token_ids, masked.positions, axis=1)
    assert masked.counts.tolist() == [18] * 300
    kinds = Counter()
    for row in range(300):
        for span in range(1, masked.span_ids[row].max() + 1):
            inside = masked.span_ids[row] == span
            hidden, kept = shown[row][inside] == 4, shown[row][inside] == masked.mask_ids[row][inside]
            assert hidden.all() or kept.all() or not (hidden.any() or kept.any())
            kinds["hidden" if hidden.all() else "kept" if kept.all() else "random"] += 1
    expected = sum(kinds.values()) * np.array([0.8, 0.1, 0.1])
    assert stats.chisquare([kinds[kind] for kind in ("hidden", "kept", "random")], expected).pvalue > 0.001
