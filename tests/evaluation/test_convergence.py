import numpy as np
import pytest
from scipy.stats import pearsonr

from keras_bert_flow.console.terminal import as_markdown
from keras_bert_flow.evaluation.report import describe_results
from keras_bert_flow.evaluation.results import RunPredictions, build_results, is_improving, score_error
from keras_bert_flow.evaluation.summary import result_rows
from tests.evaluation.test_results import DEV, TASK, TRAIN, run_of


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([], None),
        ([0.5], None),
        ([0.5, 0.6], True),
        ([0.6, 0.6], False),
        ([0.2, 0.4, 0.5], True),
        ([0.2, 0.5, 0.51], False),  # one standard error of 400 examples is 0.025
        ([0.2, 0.5, 0.53], True),
        ([0.2, 0.5, 0.5, 0.5, 0.53, 0.4], True),  # the best of the last third
        ([0.2, 0.55, 0.5, 0.5, 0.56, 0.56], False),
        ([0.167] * 20, False),
        ([0.0] * 3 + [0.01], True),
        ([1.0, 1.0, 1.0], False),
    ],
)
def test_last_third_must_gain_more_than_one_standard_error(scores, expected):
    assert is_improving(scores, "accuracy", 400) is expected


def test_errors_are_those_of_draws():
    rng = np.random.default_rng(1)
    shares = rng.binomial(300, 0.8, 4000) / 300
    assert score_error(0.8, "accuracy", 300) == pytest.approx(shares.std(), rel=0.05)  # 4,000 draws: 1.1 %
    pairs = rng.multivariate_normal([0, 0], [[1, 0.6], [0.6, 1]], (2000, 200))
    found = [pearsonr(*pair.T).statistic for pair in pairs]
    assert score_error(0.6, "pearson", 200) == pytest.approx(np.std(found), rel=0.1)


def test_runs_that_are_improving_are_marked_with_the_remedy():
    def runs_of(*curves):
        runs = [(run_of(seed, [0, 1, 2, 2]), scores) for seed, scores in enumerate(curves, 1)]
        return [RunPredictions(run.seed, run.predictions, run.seconds, tuple(scores)) for run, scores in runs]

    level, rising = [0.5, 0.5, 0.5], [0.1, 0.2, 0.9]
    runs = {"pretrained": runs_of(level, rising), "random": runs_of(rising, rising)}
    results = build_results("colours", TASK, TRAIN, DEV, runs, {})
    marks = {name: [run["improving"] for run in model["runs"]] for name, model in results["models"].items()}
    assert marks == {"baseline": [None], "random": [True, True], "pretrained": [False, True]}
    table = as_markdown(result_rows(results)).splitlines()
    assert [line.split("|")[-2].strip() for line in table[2:]] == ["-", "2 (2 improving)", "2 (1 improving)"]
    page = "".join(describe_results(results))
    assert page.count(">still improving<") == 3
    assert (
        "Still improving when they ended: 2 of 2 runs of random weights, 1 of 2 runs of pre-trained. Their scores are "
        "lower than what these models reach: raise finetuning.random_max_epochs and finetuning.epochs." in page
    )
    quiet = build_results("colours", TASK, TRAIN, DEV, {"pretrained": runs_of(level)}, {})
    assert "improving" not in "".join(describe_results(quiet)) + as_markdown(result_rows(quiet))
