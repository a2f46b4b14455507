"""What initial embeddings and steps are each worth, and what a temperature does, in sentences of the report."""

import pytest

from keras_bert_flow.console.terminal import as_markdown
from keras_bert_flow.evaluation.report import describe_results
from keras_bert_flow.evaluation.results import build_results
from keras_bert_flow.evaluation.summary import calibration_sentence, credit_sentence, result_rows, verdict
from tests.evaluation.test_results import DEV, TASK, TRAIN, run_of

TIMES = 60  # so that chance does not explain a difference
ANSWERS = {"random": [0, 0, 0, 0], "initial": [0, 1, 0, 0], "pretrained": [0, 1, 2, 0]}
CALIBRATION = {"rows": 40, "error_before": 0.2, "error_after": 0.05, "loss_before": 1.0, "loss_after": 0.5}


def results_of(*models):
    runs = {model: [run_of(seed, ANSWERS[model] * TIMES) for seed in (1, 2)] for model in models}
    return build_results("colours", TASK, TRAIN, DEV * TIMES, runs, {})


def test_the_gain_is_divided_between_embeddings_and_steps():
    results = results_of("random", "initial", "pretrained")
    assert list(results["models"]) == ["baseline", "random", "initial", "pretrained"]
    scores = [results["models"][model]["accuracy"]["mean"] for model in ("random", "initial", "pretrained")]
    assert scores == sorted(scores) and len({*scores}) == 3
    whole, counts = (100 * (scores[number] - scores[0]) for number in (2, 1))
    sentence = credit_sentence(results)
    assert sentence.startswith(
        f"Of the +{whole:.1f} points over random weights, +{counts:.1f} are of the initial embeddings"
    )
    assert f"and +{whole - counts:.1f} ± " in sentence and sentence.endswith("of the pre-training steps.")
    assert "initial embeddings, no pre-training steps" in as_markdown(result_rows(results))
    assert "initial embeddings, no pre-training steps" in verdict(results)
    assert sentence in "".join(describe_results(results))


@pytest.mark.parametrize("models", [("pretrained",), ("random", "pretrained"), ("initial", "pretrained")])
def test_nothing_is_credited_without_both_rows(models):
    assert credit_sentence(results_of(*models)) == ""


def test_temperatures_are_told_with_what_they_do():
    results = results_of("random", "pretrained")
    assert calibration_sentence(results) == ""
    results["calibration"] = {"pretrained": [CALIBRATION | {"temperature": value} for value in (1.5, 2.25)]}
    assert calibration_sentence(results) == (
        "Probabilities: the logits are divided by a temperature of 1.50 to 2.25, chosen on these dev examples. "
        "There the expected calibration error was 20.0 % and is 5.0 %."
    )
    results["calibration"] = {"pretrained": [CALIBRATION | {"temperature": 1.0, "biases": [0.5, -0.5]}]}
    assert "a temperature of 1.00 and a bias is added for each class, both chosen" in calibration_sentence(results)
    results["calibration"] = {"pretrained": [CALIBRATION | {"temperature": 1.0}]}
    assert "40 dev examples are too few to choose by" in calibration_sentence(results)
