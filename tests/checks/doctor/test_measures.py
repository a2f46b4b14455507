import math
from collections import Counter

import numpy as np
import pytest
from scipy.stats import binomtest

from keras_bert_flow.checks import findings
from keras_bert_flow.checks.findings import Lengths, Repeats, chance_range, even_histogram


def test_lengths_fall_into_doubling_buckets():
    lengths = Lengths()
    values = [0, 1, 2, 3, 4, 5, 8, 9, 16, 17, 1000]
    for value in values:
        lengths.add(value)
    rows = lengths.rows()
    assert rows[:6] == [[0, 0, 1], [1, 1, 1], [2, 2, 1], [3, 4, 2], [5, 8, 2], [9, 16, 2]]
    assert rows[-1] == [513, 1024, 1]
    for low, high, count in rows:
        assert count == sum(low <= value <= high for value in values)
    assert (lengths.count, lengths.longest, lengths.total) == (11, 1000, sum(values))


def test_lengths_of_nothing():
    assert Lengths().rows() == []


@pytest.mark.parametrize("bars", [1, 3, 8, 100])
def test_even_histogram_holds_every_length_once(bars, monkeypatch):
    monkeypatch.setattr(findings, "BARS", bars)
    counts = np.arange(38)  # counts[0] is of empty records, which are faulty
    rows = even_histogram(counts)
    assert sum(count for _, _, count in rows) == counts.sum()
    assert rows[0][0] == 1 and rows[-1][1] == 37 and len(rows) <= bars
    assert all(low == before + 1 for (_, before, _), (low, _, _) in zip(rows, rows[1:], strict=False))


def test_even_histogram_of_nothing():
    assert even_histogram(np.zeros(1)) == []


def items_of(seed, different=30_000):
    """Return items of which each comes one to four times, in no order."""
    rng = np.random.default_rng(seed)
    items = np.repeat(np.arange(different), rng.integers(1, 5, different))
    rng.shuffle(items)
    return [str(item).encode() for item in items]


def test_repeats_are_exact_below_the_limit():
    items = items_of(0, 2000)
    repeats = Repeats(2000)
    for item in items:
        repeats.add(item)
    assert repeats.is_exact
    assert repeats.repeated_share == pytest.approx(1 - len(Counter(items)) / len(items), abs=1e-12)


def test_repeats_past_the_limit_are_near_and_few_are_remembered():
    items = items_of(1)
    repeats = Repeats(2000)
    for item in items:
        repeats.add(item)
        assert len(repeats._counts) <= 2000
    assert not repeats.is_exact
    # 940 to 2,000 items are followed; copies have mean 2.5 and deviation 1.1, so 1 - 1/mean deviates by 0.006.
    assert repeats.repeated_share == pytest.approx(1 - 30_000 / len(items), abs=5 * 0.006)


def test_repeats_do_not_depend_on_order():
    items = items_of(2)
    shares = []
    for order in (items, items[::-1], sorted(items)):
        repeats = Repeats(1000)
        for item in order:
            repeats.add(item)
        shares.append(repeats.repeated_share)
    assert shares[0] == shares[1] == shares[2] > 0


def test_repeats_of_nothing():
    assert Repeats().repeated_share == 0.0


@pytest.mark.parametrize(("probability", "draws"), [(0.5, 10), (0.1, 25), (0.8, 1000), (0.1, 100_000)])
def test_chance_range_ends_where_a_binomial_test_refuses(probability, draws):
    low, high = chance_range(probability, draws)
    tail = math.erfc(5 / math.sqrt(2)) / 2  # of 5 sigma, on one side
    inside, outside = (round(high * draws), round(high * draws) + 1)
    assert binomtest(inside, draws, probability, "greater").pvalue > tail
    if outside <= draws:
        assert binomtest(outside, draws, probability, "greater").pvalue < tail * 1.01
    inside, outside = (round(low * draws), round(low * draws) - 1)
    assert binomtest(inside, draws, probability, "less").pvalue > tail * 0.99
    if outside >= 0:
        assert binomtest(outside, draws, probability, "less").pvalue < tail * 1.01


def test_chance_range_of_no_draws_allows_everything():
    assert chance_range(0.5, 0) == (0.0, 1.0)
