import numpy as np
import pytest
from scipy import stats

from keras_bert_flow.text.masking import LONGEST_SPAN, SPAN_LENGTH_SHARES, choose_spans


def make_words(lengths, gaps=()):
    """Return the positions of words of the given lengths; a special token stands before the words in `gaps`."""
    words, place = [], 1
    for number, length in enumerate(lengths):
        place += number in gaps
        words.append(np.arange(place, place + length))
        place += length
    return words


def shares_by_scipy():
    shares = stats.geom(0.2).pmf(np.arange(1, LONGEST_SPAN + 1))
    return shares / shares.sum()


def test_span_lengths_are_geometric_up_to_10():
    assert pytest.approx(shares_by_scipy()) == SPAN_LENGTH_SHARES
    assert round(float(SPAN_LENGTH_SHARES @ np.arange(1, LONGEST_SPAN + 1)), 1) == 3.8  # cut to 10 it would be 4.5


def test_spans_of_a_long_text_have_these_lengths():
    # 20,000 words and a budget for 50 spans or so: one span in 50 meets another, the end, or what is left of the
    # budget, and is cut. So a chi-square test cannot hold exactly, and 0.01 allows for it; 3.8 cut to 4 would show.
    words, rng, lengths = make_words([1] * 20_000), np.random.default_rng(1), []
    for _ in range(20):
        lengths += [len(span) for span in choose_spans(words, 200, rng)]
    shares = np.bincount(lengths, minlength=11)[1:] / len(lengths)
    error = 3.3 * np.sqrt(shares_by_scipy() / len(lengths))  # p < 0.001 of each
    assert np.all(np.abs(shares - shares_by_scipy()) < error + 0.02)


SLOW_BUDGETS = [pytest.param(budget, marks=pytest.mark.slow) for budget in (7, 10_000)]


@pytest.mark.slow
@pytest.mark.parametrize("budget", [1, 2, 30, *SLOW_BUDGETS])
def test_spans_are_whole_neighbouring_words(budget):
    rng = np.random.default_rng(2)
    for _ in range(200):
        lengths = rng.integers(1, 5, 40)
        words = make_words(lengths, gaps=(13, 14, 30))
        spans = choose_spans(words, budget, rng)
        positions = np.concatenate([*spans, np.array([], int)])
        assert np.all(np.diff(positions) > 0)  # in the order of the text, none twice
        assert len(positions) <= budget
        for span in spans:
            assert np.all(np.diff(span) == 1)  # no special token in it
            inside = [word for word in words if np.isin(word, span).any()]
            assert 1 <= len(inside) <= LONGEST_SPAN and np.array_equal(np.concatenate(inside), span)
        left = [word for word in words if not np.isin(word, positions).any()]
        assert not left or min(map(len, left)) > budget - len(positions)  # nothing that would still fit


def test_spans_start_at_every_word_alike():
    # With a budget of one token the only span is one word, at a place drawn evenly.
    words, rng, counts = make_words([1] * 20), np.random.default_rng(3), np.zeros(21)
    for _ in range(10_000):
        ((position,),) = choose_spans(words, 1, rng)
        counts[position] += 1
    assert stats.chisquare(counts[1:]).pvalue > 0.001


def test_spans_of_no_words_are_none():
    assert choose_spans([], 5, np.random.default_rng(0)) == []
