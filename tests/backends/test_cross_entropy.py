"""Cross-entropy and divergence of PyTorch on a processor are PyTorch's own, and so are their gradients."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from keras_bert_flow.backends import fused  # noqa: E402

pytestmark = pytest.mark.skipif(fused.keras.backend.backend() != "torch", reason="it computes with PyTorch's tensors")


@pytest.mark.parametrize("scale", [0.0, 1.0, 300.0])
def test_losses_and_gradients_are_those_of_pytorch(scale):
    rng = np.random.default_rng(0)
    values, labels = scale * rng.normal(size=(7, 50)).astype("float32"), torch.from_numpy(rng.integers(0, 50, 7))
    values[0, labels[0]] = values[0].max() + 100  # a loss of 0
    values[1] = -1e9  # what padding has
    weights = torch.from_numpy(rng.random(7).astype("float32"))
    gradients = []
    for compute in (
        fused.cross_entropies,
        lambda *given: torch.nn.functional.cross_entropy(*given, reduction="none"),
    ):
        logits = torch.from_numpy(values.copy()).requires_grad_()
        losses = compute(logits, labels)
        (losses * weights).sum().backward()
        gradients.append((losses.detach().numpy(), logits.grad.numpy()))
    (found, gradient), (expected, expected_gradient) = gradients
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)


@pytest.mark.parametrize("temperature", [1.0, 2.0])
@pytest.mark.parametrize("scale", [0.0, 1.0, 30.0])
def test_divergences_and_gradients_are_those_of_pytorch(scale, temperature):
    rng = np.random.default_rng(0)
    values, targets = (scale * rng.normal(size=(2, 4, 50)).astype("float32") for _ in range(2))
    values[0, 0] = targets[0, 0]  # a divergence of 0
    values[1, 2, 7] = targets[1, 2, 7] = -1e9
    weights = torch.from_numpy(rng.random((2, 4)).astype("float32"))

    def compute_plainly(logits, targets, temperature):
        given = (torch.log_softmax(value / temperature, -1) for value in (logits, targets))
        return torch.nn.functional.kl_div(*given, reduction="none", log_target=True).sum(-1)

    found = []
    for compute in (fused.divergences, compute_plainly):
        logits = torch.from_numpy(values.copy()).requires_grad_()
        given = torch.from_numpy(targets.copy())
        losses = compute(logits, given, temperature)
        np.testing.assert_array_equal(given, targets)
        (losses * weights).sum().backward()
        found.append((losses.detach().numpy(), logits.grad.numpy()))
    (losses, gradient), (expected, expected_gradient) = found
    np.testing.assert_allclose(losses, expected, rtol=1e-6, atol=1e-5)  # of logits of 100
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)


@pytest.mark.parametrize("other", [torch.tensor([0, 1, 2]), torch.eye(3, 5)])
def test_a_second_backward_pass_is_refused_rather_than_wrong(other):
    logits = torch.randn(3, 5, requires_grad=True)
    compute = fused.divergences if other.is_floating_point() else fused.cross_entropies
    loss = compute(logits, other, *([2.0] if other.is_floating_point() else [])).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
