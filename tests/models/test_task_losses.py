"""What `compile()` takes where it is given no loss, against numpy in float64."""

import numpy as np
import pytest

from keras_bert_flow.models.defaults import token_loss
from tests.oracles.pair_losses import contrastive_loss, cosines
from tests.oracles.task_models import call, make_task_inputs, make_task_labels, make_task_model

TOLERANCE = 1e-5  # float32 outputs of up to 10


def evaluate(kind, labels, weights=None):
    """Return the outputs of a model in float64 and what it says of itself."""
    model = make_task_model(kind)
    model.compile()
    inputs = make_task_inputs(kind)
    logs = model.evaluate(inputs, labels, sample_weight=weights, verbose=0, return_dict=True, batch_size=4)
    outputs = {name: value.astype("float64") for name, value in call(model, inputs).items()}
    return outputs.get("output", outputs), logs


def cross_entropy(logits, labels):
    exponents = np.exp(logits - logits.max(-1, keepdims=True))
    return -np.log(np.take_along_axis(exponents / exponents.sum(-1, keepdims=True), labels[..., None], -1)[..., 0])


@pytest.mark.parametrize("kind", ["regression", "cosine_pairs"])
@pytest.mark.parametrize("columns", [False, pytest.param(True, marks=pytest.mark.any_backend)])
@pytest.mark.slow_compiled
def test_numbers_have_the_weighted_squared_error(kind, columns):
    labels, weights = make_task_labels(kind), np.array([1, 3, 0.5, 0], "float32")
    outputs, logs = evaluate(kind, labels[:, None] if columns else labels, weights)
    outputs = cosines(outputs) if kind == "cosine_pairs" else outputs
    expected = ((outputs - labels) ** 2 * weights).sum() / 4.5
    assert logs["loss"] == pytest.approx(expected, rel=TOLERANCE)
    assert logs["root_mean_squared_error"] == pytest.approx(np.sqrt(expected), rel=TOLERANCE)


@pytest.mark.slow_compiled
def test_labels_have_binary_cross_entropies():
    labels, weights = make_task_labels("multi_label"), np.array([1, 3, 0.5, 0], "float32")
    logits, logs = evaluate("multi_label", labels, weights)
    entropy = np.logaddexp(0, logits) - labels * logits  # -log of the sigmoid, or of 1 less it
    assert logs["loss"] == pytest.approx((entropy.mean(-1) * weights).sum() / 4.5, abs=TOLERANCE)
    hits = ((logits > 0) == labels).mean(-1)
    assert logs["accuracy"] == pytest.approx((hits * weights).sum() / 4.5, abs=1e-6)


@pytest.mark.slow_compiled
@pytest.mark.parametrize("ignored", [-1, pytest.param(-100, marks=pytest.mark.any_backend)])
@pytest.mark.parametrize("weights", ["none", "tokens", "rows"])
@pytest.mark.first_form
def test_tags_are_weighted_by_token(ignored, weights):
    labels, mask = make_task_labels("token_classification"), make_task_inputs("token_classification")["padding_mask"]
    labels = np.where(mask, labels, ignored)
    labels[0, ::2] = ignored
    given = {"none": None, "tokens": np.linspace(0, 1, 36).reshape(4, 9), "rows": np.array([1, 3, 0.5, 0])}[weights]
    logits, logs = evaluate("token_classification", labels, given)
    weights = np.ones((4, 9)) if given is None else np.broadcast_to(given.reshape(4, -1), (4, 9))
    weights = weights * (labels >= 0)
    entropy = cross_entropy(logits, np.maximum(labels, 0))
    assert logs["loss"] == pytest.approx((entropy * weights).sum() / weights.sum(), abs=TOLERANCE)
    hits = logits.argmax(-1) == labels
    assert logs["accuracy"] == pytest.approx((hits * weights).sum() / weights.sum(), abs=1e-6)


@pytest.mark.slow_compiled
def test_spans_have_the_mean_of_both_cross_entropies():
    # The empty text has no weight: all its logits are so low that float32 has no room for the logarithm of their sum.
    labels, weights = make_task_labels("question_answering"), np.array([1, 2, 0.5, 0], "float32")
    outputs, logs = evaluate("question_answering", labels, dict.fromkeys(labels, weights))
    entropies = {name: cross_entropy(outputs[name], labels[name]) @ weights / 3.5 for name in ("start", "end")}
    assert abs(entropies["start"] - entropies["end"]) > 0.01  # so that one taken for the other shows
    for name, entropy in entropies.items():
        assert logs[f"{name}_loss"] == pytest.approx(entropy, abs=TOLERANCE)
        hits = outputs[name].argmax(-1) == labels[name]
        assert logs[f"{name}_accuracy"] == pytest.approx(hits @ weights / 3.5, abs=1e-6)
    assert logs["loss"] == pytest.approx(sum(entropies.values()) / 2, abs=TOLERANCE)


@pytest.mark.slow_compiled
def test_choices_have_the_cross_entropy_of_the_right_one():
    labels = make_task_labels("multiple_choice")
    scores, logs = evaluate("multiple_choice", labels)
    assert (np.take_along_axis(scores, labels[:, None], -1) > -1e8).all()
    assert logs["loss"] == pytest.approx(cross_entropy(scores, labels).mean(), abs=TOLERANCE)
    assert logs["accuracy"] == pytest.approx((scores.argmax(-1) == labels).mean(), abs=1e-6)


@pytest.mark.slow_compiled
@pytest.mark.parametrize("labels", [None, np.arange(8).reshape(4, 2)])
def test_pairs_of_a_batch_need_no_labels(labels):
    vectors, logs = evaluate("sentence_embedding", labels)
    assert logs["loss"] == pytest.approx(contrastive_loss(vectors, np.arange(8).reshape(4, 2)), abs=1e-4)
    hits = (vectors[:, 0] @ vectors[:, 1].T).argmax(-1) == np.arange(4)
    assert logs["accuracy"] == pytest.approx(hits.mean(), abs=1e-6)


@pytest.mark.any_backend
def test_one_choice_is_no_loss_and_no_accident():
    """Logits of one class are certain; only those of places, (batch, places, 1), are losses computed beforehand."""
    logits = np.array([[2.5], [-1.5]], "float32")
    assert float(token_loss()(np.zeros(2, "int32"), logits)) == pytest.approx(0.0, abs=1e-6)
    computed = np.array([[[0.5], [4.0]], [[1.5], [9.0]]], "float32")
    weights = np.array([[1.0, 0.0], [1.0, 0.0]], "float32")
    assert float(token_loss()(np.zeros((2, 2), "int32"), computed, weights)) == pytest.approx(1.0, abs=1e-6)
