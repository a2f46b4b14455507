"""Temperatures, against a fit by PyTorch, and calibration errors, against a count bin by bin."""

import numpy as np
import pytest
import torch

from keras_bert_flow.tasks.core.calibration import LEAST_ROWS, calibrate, calibration_error


def draw(rows, classes=4, sharpness=3.0, seed=0):
    """Return logits that are `sharpness` times too large for the labels drawn from them."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (rows, classes))
    shares = torch.softmax(torch.as_tensor(logits), 1).numpy()
    labels = np.array([rng.choice(classes, p=row) for row in shares])
    return logits * sharpness, labels


def fit_with_torch(logits, labels):
    """Fit 1 / temperature as a parameter, as the code of the paper does."""
    scale = torch.ones(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([scale], lr=0.5, max_iter=500, tolerance_grad=1e-12)
    logits, labels = torch.as_tensor(logits), torch.as_tensor(labels)

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits * scale, labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    return 1 / scale.item(), closure().item()


@pytest.mark.parametrize("sharpness", [0.4, 1.0, 3.0])
def test_temperature_is_that_of_another_optimizer(sharpness):
    logits, labels = draw(500, sharpness=sharpness)
    found = calibrate(logits, labels)
    temperature, loss = fit_with_torch(logits, labels)
    assert found.temperature == pytest.approx(temperature, rel=1e-4)  # both stop near a flat optimum
    assert found.loss_after == pytest.approx(loss, abs=1e-9)
    assert found.temperature == pytest.approx(sharpness, rel=0.2)  # of 500 rows
    assert found.loss_after <= found.loss_before
    before = torch.nn.functional.cross_entropy(torch.as_tensor(logits), torch.as_tensor(labels)).item()
    assert found.loss_before == pytest.approx(before, abs=1e-12)


def test_error_is_that_of_a_count_bin_by_bin():
    logits, labels = draw(400)
    shares = torch.softmax(torch.as_tensor(logits), 1).numpy()
    error = 0.0
    for low in np.arange(15) / 15:
        inside = [
            row
            for row in range(400)
            if low <= shares[row].max() < low + 1 / 15 or (low > 0.93 and shares[row].max() == 1)
        ]
        if inside:
            right = np.mean([shares[row].argmax() == labels[row] for row in inside])
            error += len(inside) / 400 * abs(right - np.mean([shares[row].max() for row in inside]))
    assert calibration_error(shares, labels) == pytest.approx(error, abs=1e-12)
    found = calibrate(logits, labels)
    assert found.error_before == pytest.approx(error, abs=1e-12) and found.error_after < error / 2


def test_answers_that_are_all_right_are_not_made_more_certain():
    labels = np.arange(60) % 3
    logits = 0.5 * np.eye(3)[labels]
    assert calibrate(logits, labels).temperature == pytest.approx(1.0, abs=1e-4)
    logits[0] = [0, 0.5, 0]  # one is wrong
    assert calibrate(logits, labels).temperature < 0.5


def test_few_rows_leave_the_logits_as_they_are():
    logits, labels = draw(LEAST_ROWS)
    assert calibrate(logits, labels).temperature > 1.5
    found = calibrate(logits[1:], labels[1:])
    assert (found.temperature, found.rows, found.error_before) == (1.0, LEAST_ROWS - 1, found.error_after)


def test_extreme_logits_are_no_fault():
    logits = np.array([[1e4, -1e4], [-1e4, 1e4]] * 20)
    found = calibrate(logits, np.zeros(40, int))  # half of the answers are wrong, with certainty
    assert found.temperature == pytest.approx(20, rel=1e-3) and np.isfinite(found.loss_after)


def test_biases_are_those_of_another_optimizer_and_undo_other_shares_of_classes():
    logits, labels = draw(3000, classes=3, sharpness=1.0)
    rng = np.random.default_rng(1)
    kept = rng.random(3000) < np.array([1.0, 0.3, 0.05])[labels]  # the shares change, what a text says does not
    logits, labels = logits[kept], labels[kept]
    found = calibrate(logits, labels, with_biases=True)
    scale = torch.ones(1, dtype=torch.float64, requires_grad=True)
    biases = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([scale, biases], lr=0.5, max_iter=500, tolerance_grad=1e-12)

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(torch.as_tensor(logits) * scale + biases, torch.as_tensor(labels))
        loss = loss + (biases**2).sum() / 2 / len(labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    assert found.temperature == pytest.approx(1 / scale.item(), rel=1e-4)
    np.testing.assert_allclose(found.biases, biases.detach().numpy(), atol=1e-4)
    differences = np.subtract(found.biases, found.biases[0])  # only these matter: ln of the shares that were kept
    np.testing.assert_allclose(differences, np.log([1.0, 0.3, 0.05]), atol=0.35)  # 2 errors of some 60 rows of a class
    answers = found.apply(logits).argmax(axis=1)
    assert (answers == labels).mean() > (logits.argmax(axis=1) == labels).mean()
    assert found.loss_after < calibrate(logits, labels).loss_after


def test_biases_stay_finite_and_stay_away():
    logits, labels = draw(200, classes=4)
    found = calibrate(logits, np.where(labels == 3, 0, labels), with_biases=True)  # no row of the last class
    assert np.isfinite(found.biases).all() and found.biases[3] == min(found.biases)
    assert calibrate(logits, labels).biases == ()
    few = calibrate(logits[:20], labels[:20], with_biases=True)
    assert (few.temperature, few.biases) == (1.0, (0.0,) * 4)
    np.testing.assert_array_equal(few.apply(logits), logits)
