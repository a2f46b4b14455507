"""Cross-entropy, divergence and best class of many logits in few passes over them, on PyTorch on a processor."""

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


def _make_functions():
    if keras.backend.backend() != "torch":
        return None, None
    import torch

    def log_sums(logits, probabilities, origin=0.0):
        # By way of the largest logit, whose probability is at least 1 / classes: another may be rounded to 0.
        return logits.amax(-1) - origin - probabilities.amax(-1).log()

    class CrossEntropies(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, labels):
            labels = labels.long()[:, None]
            probabilities = torch.softmax(logits, -1)
            ctx.save_for_backward(probabilities, labels)
            return log_sums(logits, probabilities, logits.gather(1, labels)[:, 0])

        @staticmethod
        def backward(ctx, gradients):
            probabilities, labels = ctx.saved_tensors
            probabilities.mul_(gradients[:, None])
            return probabilities.scatter_add_(1, labels, -gradients[:, None]), None

    class Divergences(torch.autograd.Function):
        @staticmethod
        def forward(ctx, logits, targets, temperature):
            logits, targets = logits / temperature, targets / temperature
            shares, guesses = torch.softmax(targets, -1), torch.softmax(logits, -1)
            apart = log_sums(logits, guesses) - log_sums(targets, shares)
            # A product of matrices; PyTorch's `vecdot` would write all products down.
            apart += (shares[..., None, :] @ targets.sub_(logits)[..., None])[..., 0, 0]
            ctx.save_for_backward(guesses.sub_(shares))
            ctx.temperature = temperature
            return apart

        @staticmethod
        def backward(ctx, gradients):
            (differences,) = ctx.saved_tensors
            return differences.mul_((gradients / ctx.temperature)[..., None]), None, None

    return CrossEntropies.apply, Divergences.apply


_cross_entropies, _divergences = _make_functions()


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


def divergences(logits, targets, temperature):
    """Return the Kullback-Leibler divergence of softmax(logits / temperature) from softmax(targets / temperature),
    without the last axis.

    Kept for the gradient, which can be computed once, is the difference of the two alone: PyTorch, told the formula,
    keeps five tensors of that size. None is passed to `targets`.

    Args:
        logits, targets: float32, (..., classes), of which `is_computable` holds.
        temperature: above 0; the higher, the softer both.
    """
    return _divergences(logits, targets, temperature)
