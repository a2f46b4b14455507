"""Batched Muon step: orthogonalise all matrices together, for PyTorch on a CPU."""

from collections import defaultdict

from keras_bert_flow.backends.products import product_dtype


def orthogonalise_together(matrices, product_type, coefficients, iterations):
    """Orthogonalise a list of matrices, with the result of `muon.orthogonalise` for each.

    Matrices of the same shape are stacked, so that their products are one call.

    Args:
        matrices: float32 tensors, (inputs, outputs) or (parts, inputs, outputs), of any shapes.
        product_type: dtype of the matrix products.
        coefficients: of the quintic polynomial.
        iterations: of the polynomial.
    """
    import torch

    rows = defaultdict(list)  # shape, the shorter side first → indices of the matrices
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
    """Update matrices in place along a direction computed from their Nesterov momentum.

    Args:
        weights, gradients, momentums: tensors, lists of equal length.
        directions_of: maps a list of such tensors to their update directions.
        momentum: decay rate of the momentum.
        rates: the learning rate of each matrix.
        decay: decoupled decay.
        scale: divisor of the gradients, a tensor or None.
    """
    import torch

    if scale is not None:
        gradients = torch._foreach_div(gradients, scale)
    torch._foreach_mul_(momentums, momentum)
    torch._foreach_add_(momentums, gradients)
    directions = directions_of(torch._foreach_add(gradients, momentums, alpha=momentum))
    torch._foreach_mul_(weights, [1 - rate * decay for rate in rates])
    torch._foreach_add_(weights, torch._foreach_mul(directions, [-rate for rate in rates]))
