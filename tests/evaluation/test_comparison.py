import numpy as np
import pytest
from scipy.stats import binomtest, norm, permutation_test, sem

from keras_bert_flow.evaluation.results import compare_models, draw_scores, score_errors
from keras_bert_flow.tasks.core.metrics import mean_measure


def compare_runs(runs, others, count: int, paired: bool = False, **options):
    seeds = {"runs": (1, 2, 3), "others": (1, 2, 3) if paired else (4, 5, 6)}
    measures = {"runs": runs, "others": others}
    return compare_models(measures, seeds, draw_scores(measures, count, **options), count, "runs")["others"]


def draw(rng: np.random.Generator, rate: float, count: int, hardness: np.ndarray | None = None):
    """Return which answers are right; those of one hardness are right together."""
    uniform = rng.random(count) if hardness is None else hardness
    return (uniform < rate).astype(float)


def test_error_of_independent_runs_is_that_of_two_shares():
    rng = np.random.default_rng(1)
    one, other = draw(rng, 0.7, 2000), draw(rng, 0.5, 2000)
    found = compare_runs([mean_measure(one)], [mean_measure(other)], 2000)
    assert found["difference"] == pytest.approx(one.mean() - other.mean())
    expected = np.sqrt((one.var() + other.var() - 2 * np.cov(one, other)[0, 1]) / 2000)
    assert found["standard_error"] == pytest.approx(expected, rel=0.2)  # 200 draws know it to 5 %; four times that
    assert found["beyond_chance"] and found["resamples"] == 200


def test_examples_are_paired():
    hardness = np.random.default_rng(1).random(500)
    one, other = draw(None, 0.62, 500, hardness), draw(None, 0.6, 500, hardness)
    found = compare_runs([mean_measure(one)], [mean_measure(other)], 500)
    assert found["standard_error"] < 0.4 * np.sqrt((one.var() + other.var()) / 500) and found["beyond_chance"]


def test_seeds_add_their_variance_paired_where_they_are_the_same():
    runs = [mean_measure(np.full(50, value)) for value in (0.5, 0.6, 0.7)]
    lower = [mean_measure(np.full(50, value)) for value in (0.4, 0.5, 0.6)]
    paired, unpaired = (compare_runs(runs, lower, 50, paired=paired) for paired in (True, False))
    assert (paired["difference"], paired["standard_error"]) == (pytest.approx(0.1), pytest.approx(0, abs=1e-9))
    assert unpaired["standard_error"] == pytest.approx(np.sqrt(2 * 0.01 / 3))
    assert paired["beyond_chance"] and not unpaired["beyond_chance"]
    measures, seeds = {"a": lower, "b": runs[:1], "c": runs}, {"a": (1, 2, 3), "b": (None,), "c": (1, 2, 3)}
    found = compare_models(measures, seeds, draw_scores(measures, 50), 50, "c")
    assert list(found) == ["a", "b"] and found["a"] == pytest.approx(paired)
    assert found["b"]["standard_error"] == pytest.approx(np.sqrt(0.01 / 3))


def test_error_of_a_score_is_over_examples_and_seeds():
    """Against the textbook: a share's √(p(1-p)/n) for one run, and the standard error of the mean over equal seeds."""
    right = draw(np.random.default_rng(1), 0.7, 2000)
    measures = {"one": [mean_measure(right)], "seeds": [mean_measure(np.full(2000, v)) for v in (0.5, 0.6, 0.7)]}
    found = score_errors(measures, draw_scores(measures, 2000), 2000)
    assert found["one"] == pytest.approx(right.std() / np.sqrt(2000), rel=0.2)  # of 200 draws, as above
    assert found["seeds"] == pytest.approx(sem((0.5, 0.6, 0.7)))


def test_chance_is_told_at_the_stated_rate():
    """Of models that are equally good, differences beyond two standard errors have the share of the normal law."""
    rng = np.random.default_rng(2)
    found = [
        compare_runs([mean_measure(draw(rng, 0.7, 200))], [mean_measure(draw(rng, 0.7, 200))], 200, seed=seed)
        for seed in range(100)
    ]
    share = np.mean([one["beyond_chance"] for one in found])
    expected = 2 * norm.sf(2)
    assert share == pytest.approx(expected, abs=4 * np.sqrt(expected * (1 - expected) / 100))


@pytest.mark.parametrize("differing", [*range(1, 13), 40])
def test_few_differing_examples_need_the_exact_test(differing):
    one, other = np.ones(200), np.ones(200)
    other[:differing] = 0  # all in favour of the first
    found = compare_runs([mean_measure(one)], [mean_measure(other)], 200)
    exact = binomtest(0, differing).pvalue  # the sign test
    assert found["beyond_chance"] == (exact <= 2 * norm.sf(2)) and not found["too_few"]


def test_mixed_differences_have_the_p_value_of_scipy():
    one, other = np.zeros(100), np.zeros(100)
    one[:11], other[:11] = 1, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0.9]
    other[11] = 1
    differences = (one - other)[:12]
    exact = permutation_test((differences,), np.sum, permutation_type="samples", n_resamples=np.inf).pvalue
    found = compare_runs([mean_measure(one)], [mean_measure(other)], 100)
    assert found["beyond_chance"] == (exact <= 2 * norm.sf(2))
