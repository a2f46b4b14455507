"""The loss of predictions is what scikit-learn and NumPy make of them."""

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.metrics import log_loss, mean_squared_error

from keras_bert_flow.tasks.core.task import IGNORED, Features, mean_loss

RNG = np.random.default_rng(1)
LENGTHS = (3, 6, 4)


def loss_of(outputs, labels):
    rows = len(next(iter(labels.values())))
    return mean_loss(outputs, Features((), np.zeros(rows), np.arange(rows), labels))


def test_classes():
    logits, labels = RNG.normal(size=(20, 4)).astype("float32"), RNG.integers(0, 4, 20).astype("int32")
    expected = log_loss(labels, softmax(logits.astype(float), axis=1), labels=range(4))
    assert loss_of({"logits": logits}, {"logits": labels}) == pytest.approx(expected)


def test_tags_without_those_ignored():
    logits = [RNG.normal(size=(length, 5)) for length in LENGTHS]
    labels = [RNG.integers(0, 5, length) for length in LENGTHS]
    labels[0][0] = labels[2][1] = IGNORED
    kept, found = np.concatenate(labels), np.concatenate(logits)
    expected = log_loss(kept[kept >= 0], softmax(found[kept >= 0], axis=1), labels=range(5))
    assert loss_of({"logits": logits}, {"logits": labels}) == pytest.approx(expected)


def test_places_of_answers_are_the_mean_of_both_ends():
    outputs = {name: [RNG.normal(size=length) for length in LENGTHS] for name in ("start", "end")}
    labels = {"start": np.array([0, 5, 2], np.int32), "end": np.array([2, 5, 3], np.int32)}
    losses = [
        -np.log(softmax(row)[label]) for name in outputs for row, label in zip(outputs[name], labels[name], strict=True)
    ]
    assert loss_of(outputs, labels) == pytest.approx(np.mean(losses))


def test_labels_that_are_on_or_off():
    logits, labels = RNG.normal(size=(9, 3)), RNG.integers(0, 2, (9, 3)).astype("float32")
    expected = np.mean([log_loss(labels[:, place], expit(logits[:, place]), labels=[0, 1]) for place in range(3)])
    assert loss_of({"logits": logits}, {"logits": labels}) == pytest.approx(expected)


@pytest.mark.parametrize("shape", [(8,), (8, 1)])
def test_numbers(shape):
    outputs, labels = RNG.normal(size=shape), RNG.normal(size=8).astype("float32")
    assert loss_of({"logits": outputs}, {"logits": labels}) == pytest.approx(
        mean_squared_error(labels, outputs.reshape(-1))
    )
