"""Cross-entropy and best class of many logits in few passes over them, on PyTorch on a processor."""

import keras


def is_computable(tensor):
    """Say whether what is below takes a tensor: float32, of PyTorch, on a processor, and not within `torch.compile`."""
    if keras.backend.backend() != "torch":
        return False
    import torch

    return tensor.device.type == "cpu" and tensor.dtype == torch.float32 and not torch.compiler.is_compiling()


def best_classes(logits):
    """Return the position of the largest logit of each row, the first of equal ones; NumPy finds it far sooner."""
    import torch

    return torch.from_numpy(logits.detach().numpy().argmax(axis=-1))


def _make_cross_entropies():
    if keras.backend.backend() != "torch":
        return None
    import torch

    class CrossEntropies(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, labels):
            labels = labels.long()[:, None]
            probabilities = torch.softmax(logits, -1)
            # By way of the largest logit, whose probability is at least 1 / classes: the label's may be rounded to 0.
            distance = logits.amax(-1) - logits.gather(1, labels)[:, 0]
            ctx.save_for_backward(probabilities, labels)
            return distance - probabilities.amax(-1).log()

        @staticmethod
        def backward(ctx, gradients):
            probabilities, labels = ctx.saved_tensors
            probabilities.mul_(gradients[:, None])
            return probabilities.scatter_add_(1, labels, -gradients[:, None]), None

    return CrossEntropies.apply


_cross_entropies = _make_cross_entropies()


def cross_entropies(logits, labels):
    """Return -log softmax(logits)[label], (rows,).

    PyTorch keeps the logarithms of all probabilities, raises e to them again for the gradient, and fills a tensor of
    that size with zeros for the labels. Here the probabilities are kept and become the gradient where they are, so it
    can be computed once: PyTorch raises an error at a second backward pass.

    Args:
        logits: float32, (rows, classes), of which `is_computable` holds.
        labels: int, (rows,).
    """
    return _cross_entropies(logits, labels)
