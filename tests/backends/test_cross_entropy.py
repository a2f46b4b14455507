"""The cross-entropy of PyTorch on a processor is PyTorch's own, and so are its gradients."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from keras_bert_flow.backends import cross_entropy  # noqa: E402

pytestmark = pytest.mark.skipif(
    cross_entropy.keras.backend.backend() != "torch", reason="it computes with PyTorch's tensors"
)


@pytest.mark.parametrize("scale", [0.0, 1.0, 300.0])
def test_losses_and_gradients_are_those_of_pytorch(scale):
    rng = np.random.default_rng(0)
    values, labels = scale * rng.normal(size=(7, 50)).astype("float32"), torch.from_numpy(rng.integers(0, 50, 7))
    values[0, labels[0]] = values[0].max() + 100  # a loss of 0
    values[1] = -1e9  # what padding has
    weights = torch.from_numpy(rng.random(7).astype("float32"))
    gradients = []
    for compute in (
        cross_entropy.cross_entropies,
        lambda *given: torch.nn.functional.cross_entropy(*given, reduction="none"),
    ):
        logits = torch.from_numpy(values.copy()).requires_grad_()
        losses = compute(logits, labels)
        (losses * weights).sum().backward()
        gradients.append((losses.detach().numpy(), logits.grad.numpy()))
    (found, gradient), (expected, expected_gradient) = gradients
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(gradient, expected_gradient, atol=1e-6)


def test_a_second_backward_pass_is_refused_rather_than_wrong():
    logits = torch.randn(3, 5, requires_grad=True)
    loss = cross_entropy.cross_entropies(logits, torch.tensor([0, 1, 2])).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()
