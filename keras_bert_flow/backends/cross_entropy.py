"""Cross-entropy, KL divergence and argmax of many logits in few passes, for PyTorch on a CPU."""

import keras


def is_computable(tensor):
    """Return whether this module supports a tensor: float32, PyTorch, on a CPU, and not within `torch.compile`."""
    if keras.backend.backend() != "torch":
        return False
    import torch

    return tensor.device.type == "cpu" and tensor.dtype == torch.float32 and not torch.compiler.is_compiling()


def best_classes(logits):
    """Return the argmax of each row of logits, the first of ties; NumPy is far faster than PyTorch here."""
    import torch

    return torch.from_numpy(logits.detach().numpy().argmax(axis=-1))


def _make_functions():
    if keras.backend.backend() != "torch":
        return None, None
    import torch

    def log_sums(logits, probabilities, origin=0.0):
        # Computed from the largest logit, whose probability is at least 1 / classes: others may be rounded to 0.
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
            # A matrix product; PyTorch's `vecdot` would materialise all products.
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
    """Return the cross-entropy of each row, -log softmax(logits)[label], (rows,).

    PyTorch saves all log-probabilities, exponentiates them again for the gradient, and allocates a tensor of zeros of
    the same size for the labels. Here the probabilities are saved and turned into the gradient in place, so only one
    backward pass is possible: PyTorch raises an error at a second one.

    Args:
        logits: float32, (rows, classes), for which `is_computable` is true.
        labels: int, (rows,).
    """
    return _cross_entropies(logits, labels)


def divergences(logits, targets, temperature):
    """Return the Kullback-Leibler divergence of softmax(logits / temperature) from softmax(targets / temperature).

    The result lacks the last axis. Only the difference of the two distributions is saved for the gradient, where
    autograd of the formula would save five tensors of that size. Only one backward pass is possible, and `targets` gets
    no gradient.

    Args:
        logits, targets: float32, (..., classes), for which `is_computable` is true.
        temperature: above 0; higher values soften both distributions.
    """
    return _divergences(logits, targets, temperature)
