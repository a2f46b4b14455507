"""The accuracy of tokens is Keras' own, of equal logits too."""

import keras
import numpy as np
import pytest

from keras_bert_flow.models.defaults import token_accuracy


@pytest.mark.parametrize("shape", [(6,), (4, 7)])
@pytest.mark.parametrize("is_weighted", [False, True])
@pytest.mark.first_form_compiled
def test_accuracy_is_that_of_keras(shape, is_weighted):
    rng = np.random.default_rng(3)
    logits = rng.integers(0, 3, (*shape, 5)).astype("float32")  # so few values that most rows have ties
    labels = rng.integers(0, 5, shape)
    weights = rng.random(shape).astype("float32") if is_weighted else None
    ours, expected = token_accuracy(), keras.metrics.SparseCategoricalAccuracy()
    for metric in (ours, expected):
        metric.update_state(labels, logits, weights)
        metric.update_state(labels[::-1].copy(), logits, weights)
    assert 0 < float(expected.result()) < 1
    np.testing.assert_allclose(float(ours.result()), float(expected.result()), rtol=1e-6)
    assert ours.name == "accuracy"
