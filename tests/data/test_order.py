"""The order of records is a permutation in each pass, and every order is as likely as any other."""

import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from keras_bert_flow.data.order import ROWS, Shuffled

pytestmark = pytest.mark.any_backend


def orders_of(length, passes, seed=1):
    """Return the orders of so many passes, (passes, length)."""
    shuffled = Shuffled(range(length), seed)
    return np.array([shuffled[place] for place in range(passes * length)]).reshape(passes, length)


@pytest.mark.parametrize("length", [*range(1, 20), 63, 64, 65, 1000, 4097])
def test_each_pass_has_each_record_once(length):
    for order in orders_of(length, 3):
        assert sorted(order) == list(range(length))


@pytest.mark.parametrize(("length", "passes"), [(3, 4_000), (4, 20_000), (5, 4_000)])
@pytest.mark.slow
def test_every_order_is_as_frequent(length, passes):
    counts = Counter(map(tuple, orders_of(length, passes).tolist()))
    assert len(counts) == math.factorial(length)
    assert stats.chisquare(list(counts.values())).pvalue > 0.001


@pytest.mark.slow
@pytest.mark.parametrize("length", [12, 100])
def test_every_place_and_every_successor_are_as_frequent(length):
    orders = orders_of(length, 2_000)
    places, successors = np.zeros((2, length, length))
    for order in orders:
        places[np.arange(length), order] += 1
        successors[order[:-1], order[1:]] += 1
    assert stats.chisquare(places.ravel()).pvalue > 0.001
    assert stats.chisquare(successors[~np.eye(length, dtype=bool)]).pvalue > 0.001


def test_orders_of_passes_and_seeds_have_nothing_in_common():
    first, second = orders_of(5_000, 2)
    other = orders_of(5_000, 1, seed=2)[0]
    for order in (second, other):
        assert np.sum(first == order) < 10  # one by chance
        assert abs(stats.spearmanr(first, order).statistic) < 0.06  # four standard errors


def test_a_place_far_off_is_found_at_once():
    length = 1_000_000_007
    shuffled = Shuffled(range(length), 1)
    assert len(shuffled) == ROWS
    found = [shuffled[ROWS - place] for place in range(1, 1_001)]
    assert len(set(found)) == 1_000 and 0 <= min(found) < length / 100 and 0.99 * length < max(found) < length


def test_orders_are_those_of_every_version():
    """A run that was stopped goes on with another version of this package, of Python or of NumPy."""
    assert orders_of(8, 2, seed=3).tolist() == [[4, 3, 7, 5, 6, 2, 1, 0], [4, 6, 3, 2, 5, 7, 0, 1]]


def test_no_records_are_refused():
    with pytest.raises(ValueError, match=r"^There must be something to train on\. Received: none\."):
        Shuffled([], 1)
