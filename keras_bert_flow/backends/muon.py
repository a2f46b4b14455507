"""Orthogonalise the matrices of a Muon step together, on PyTorch on a processor."""

from collections import defaultdict

from keras_bert_flow.backends.products import product_dtype


def orthogonalise_together(matrices, product_type, coefficients, iterations):
    """Return the orthogonal form of each matrix, as `muon.orthogonalise` does one by one.

    Matrices of one shape are stacked, so that a product of all of them is one call.

    Args:
        matrices: float32 tensors, (inputs, outputs) or (parts, inputs, outputs), of any shapes.
        product_type: of the products.
        coefficients: of the quintic.
        iterations: of it.
    """
    import torch

    rows = defaultdict(list)  # shape, the shorter side first → positions of the matrices
    stacks = [matrix if matrix.ndim == 3 else matrix[None] for matrix in matrices]
    for position, stack in enumerate(stacks):
        rows[tuple(sorted(stack.shape[1:]))].append(position)
    found = [None] * len(matrices)
    for positions in rows.values():
        wide = [_as_wide(stacks[position]) for position in positions]
        values = torch.cat(wide)
        values = values / (torch.linalg.vector_norm(values, dim=(-2, -1), keepdim=True) + 1e-7)
        values = values.to(getattr(torch, product_dtype(product_type)))
        values = _iterate(values, coefficients, iterations).to(matrices[0].dtype)
        for position, part in zip(positions, values.split([len(stack) for stack in wide]), strict=True):
            inputs, outputs = stacks[position].shape[1:]
            part = (part.mT if inputs > outputs else part) * max(1.0, outputs / inputs) ** 0.5
            found[position] = part.reshape(matrices[position].shape)
    return found


def _as_wide(stack):
    return stack.mT if stack.shape[1] > stack.shape[2] else stack


def _iterate(values, coefficients, iterations):
    import torch

    first, second, third = coefficients
    for _ in range(iterations):
        gram = torch.bmm(values, values.mT)
        gram = torch.baddbmm(gram, gram, gram, beta=second, alpha=third)
        values = torch.baddbmm(values, gram, values, beta=first)
    return values


def step_matrices(weights, gradients, momentums, directions_of, momentum, rates, decay, scale):
    """Move matrices in place along the direction of their Nesterov momentum.

    Args:
        weights, gradients, momentums: tensors, lists of equal length.
        directions_of: makes directions of a list of tensors like these.
        momentum: how much of it is kept.
        rates: the learning rate of each.
        decay: decoupled decay.
        scale: what the gradients are divided by, a tensor, or None.
    """
    import torch

    if scale is not None:
        gradients = torch._foreach_div(gradients, scale)
    torch._foreach_mul_(momentums, momentum)
    torch._foreach_add_(momentums, gradients)
    directions = directions_of(torch._foreach_add(gradients, momentums, alpha=momentum))
    torch._foreach_mul_(weights, [1 - rate * decay for rate in rates])
    torch._foreach_add_(weights, torch._foreach_mul(directions, [-rate for rate in rates]))
