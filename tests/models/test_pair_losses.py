"""Losses of pairs are those of `sentence_transformers`; filler and texts that occur twice are nobody's negatives."""

import keras
import numpy as np
import pytest

from keras_bert_flow.models.losses import ContrastiveAccuracy, ContrastiveLoss, CosineError, CosineLoss
from tests.oracles.pair_losses import contrastive_loss, cosine_loss, cosines

RNG = np.random.default_rng(4)
VECTORS = RNG.normal(size=(6, 2, 5)).astype("float32") * RNG.uniform(0.1, 10, (6, 2, 1)).astype("float32")
DIFFERENT = np.arange(12, dtype="int32").reshape(6, 2)
# Pair 1 has the second text of pair 0, pair 3 the first of pair 2; what pair 4 asks, pair 5 answers.
SHARED = np.array([[0, 1], [2, 1], [3, 4], [3, 5], [6, 7], [8, 6]], "int32")
WEIGHTS = np.array([1, 1, 1, 0.5, 1, 0], "float32")
ROUNDING = 1e-4  # logits of up to 20 in float32


def value(tensor):
    return float(keras.ops.convert_to_numpy(tensor))


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("numbers", [DIFFERENT, SHARED])
@pytest.mark.parametrize("scale", [1.0, 20.0])
@pytest.mark.slow_compiled
def test_contrastive_loss_is_that_of_sentence_transformers(numbers, weights, scale):
    loss = value(ContrastiveLoss(scale)(numbers, VECTORS, weights))
    assert loss == pytest.approx(contrastive_loss(VECTORS, numbers, weights, scale), abs=ROUNDING)


def test_each_shared_text_takes_a_negative_away():
    every = contrastive_loss(VECTORS, DIFFERENT, scale=1.0)
    for pair in ([0, 1], [2, 3], [4, 5]):
        numbers = DIFFERENT.copy()
        numbers[pair] = SHARED[pair] + 20
        loss = value(ContrastiveLoss(scale=1.0)(numbers, VECTORS))
        assert loss == pytest.approx(contrastive_loss(VECTORS, numbers, scale=1.0), abs=1e-5)
        assert loss < every - 0.01


@pytest.mark.slow_compiled
def test_filler_changes_nothing():
    """A batch that is filled up with its own pairs, of weight 0, has the loss and the accuracy of the pairs alone."""
    filled, numbers = np.resize(VECTORS[:4], VECTORS.shape), np.resize(DIFFERENT[:4], DIFFERENT.shape)
    weights = np.array([1, 1, 1, 1, 0, 0], "float32")
    strange = DIFFERENT.copy()  # and where it is not seen by its texts that it is filler
    for given in (numbers, strange):
        assert value(ContrastiveLoss()(given, filled, weights)) == pytest.approx(
            value(ContrastiveLoss()(DIFFERENT[:4], VECTORS[:4])), rel=1e-6
        )
        accuracies = []
        for rows, labels, known in ((filled, given, weights), (VECTORS[:4], DIFFERENT[:4], None)):
            metric = ContrastiveAccuracy()
            metric.update_state(labels, rows, known)
            accuracies.append(value(metric.result()))
        assert accuracies[0] == accuracies[1]


@pytest.mark.slow_compiled
def test_a_pair_alone_has_nothing_to_learn():
    assert value(ContrastiveLoss()(DIFFERENT[:1], VECTORS[:1])) == 0.0
    assert value(ContrastiveLoss()(np.zeros((6, 2), "int32"), VECTORS)) == 0.0


@pytest.mark.slow_compiled
def test_contrastive_accuracy_counts_partners_that_are_nearest():
    first = np.eye(4, 5, dtype="float32")
    # Pairs 0 and 1 find their own; what pair 2 is nearest to is the second text of pair 3.
    second = np.stack([first[0], first[1], first[2] + np.eye(5, dtype="float32")[4], first[2]])
    for weights, share in ((None, 0.5), (np.array([1, 1, 1, 0], "float32"), 1.0)):
        metric = ContrastiveAccuracy()
        metric.update_state(DIFFERENT[:4], np.stack([first, second], axis=1), weights)
        assert value(metric.result()) == share


@pytest.mark.parametrize("weights", [None, WEIGHTS])
@pytest.mark.parametrize("columns", [False, True])
def test_cosine_loss_is_that_of_sentence_transformers(columns, weights):
    labels = RNG.uniform(0, 1, 6).astype("float32")
    given = labels[:, None] if columns else labels
    expected = cosine_loss(VECTORS, labels, weights)
    assert value(CosineLoss()(given, VECTORS, weights)) == pytest.approx(expected, rel=1e-5)
    metric = CosineError()
    metric.update_state(given, VECTORS, weights)
    assert value(metric.result()) == pytest.approx(np.sqrt(expected), rel=1e-5)
    assert value(CosineLoss()(cosines(VECTORS), VECTORS)) < 1e-10


@pytest.mark.any_backend
@pytest.mark.parametrize("loss", [ContrastiveLoss(7.0), CosineLoss()])
def test_losses_come_back_from_their_configuration(loss):
    twin = keras.losses.deserialize(keras.losses.serialize(loss))
    labels = DIFFERENT if isinstance(loss, ContrastiveLoss) else np.zeros(6, "float32")
    assert value(twin(labels, VECTORS)) == value(loss(labels, VECTORS)) > 0
