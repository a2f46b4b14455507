import numpy as np
import pytest
from scipy import stats

from keras_bert_flow.evaluation.results import bootstrap_interval
from keras_bert_flow.tasks.core.metrics import mean_measure


@pytest.mark.parametrize(("count", "share"), [(40, 0.5), (1000, 0.9), (3, 1.0)])
def test_interval_of_accuracy_is_that_of_scipy(count, share):
    right = np.random.default_rng(5).random(count) < share
    expected = stats.bootstrap(
        (right,), np.mean, n_resamples=1000, method="percentile", random_state=np.random.default_rng(1)
    ).confidence_interval
    found = bootstrap_interval(mean_measure(right), count)
    assert (found["low"], found["high"]) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert (found["level"], found["resamples"]) == (0.95, 1000)


@pytest.mark.slow
def test_interval_holds_the_middle_of_what_other_examples_give():
    """Of samples of 200 whose true share is 0.7, the interval should hold 0.7 in 95 %."""
    rng = np.random.default_rng(3)
    held = []
    for _ in range(200):
        interval = bootstrap_interval(mean_measure(rng.random(200) < 0.7), 200)
        held.append(interval["low"] <= 0.7 <= interval["high"])
    assert 0.89 < np.mean(held) < 0.99  # four standard errors of 0.0154 below, and fewer than all above


def test_interval_draws_less_often_of_many_examples():
    drawn = []

    def measure(chosen):
        drawn.append(len(chosen))
        return float(chosen[0])

    assert [bootstrap_interval(measure, count)["resamples"] for count in (10_000, 20_000, 300_000)] == [1000, 500, 100]
    assert drawn == [10_000] * 1000 + [20_000] * 500 + [300_000] * 100


def test_interval_is_the_same_twice_and_other_with_another_seed():
    measure = mean_measure(np.random.default_rng(0).random(50))
    assert bootstrap_interval(measure, 50) == bootstrap_interval(measure, 50) != bootstrap_interval(measure, 50, seed=2)
