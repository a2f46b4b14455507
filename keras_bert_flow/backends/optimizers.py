"""Fused steps of AdamW and Muon: one pass over the weights, where Keras needs several."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.fused import fuse
from keras_bert_flow.backends.products import product_dtype
from keras_bert_flow.backends.values import Tensor

UNFUSED = ("use_ema", "loss_scale_factor", "clipnorm", "clipvalue")  # arguments that the PyTorch version lacks


def dense_gradients(gradients: Sequence[Tensor]) -> list[Tensor]:
    """Convert the sparse gradients of TensorFlow (`IndexedSlices`) into dense ones.

    The gradient of a gather has an entry each time a row was gathered. Keras computes norms and squares of each entry
    separately, where those of their sum are meant.
    """
    return [
        ops.segment_sum(gradient.values, gradient.indices, gradient.dense_shape[0])
        if hasattr(gradient, "dense_shape")
        else gradient
        for gradient in gradients
    ]


@fuse
def step_at_once(
    gradient: Tensor,
    momentum: Tensor,
    velocity: Tensor,
    weight: Tensor,
    rate: Tensor,
    beta_1: float,
    beta_2: float,
    epsilon: float,
) -> tuple[Tensor, Tensor, Tensor]:
    momentum = momentum + (gradient - momentum) * (1 - beta_1)
    velocity = velocity + (ops.square(gradient) - velocity) * (1 - beta_2)
    return momentum, velocity, weight - momentum * rate / (ops.sqrt(velocity) + epsilon)


def apply_at_once(
    optimizer: Any, grads: Sequence[Tensor], trainable_variables: Sequence[keras.Variable] | None, step: Callable
) -> None:
    """Implement `Optimizer.apply` with one call for all weights, for PyTorch on a CPU.

    The gradients of accumulated batches are summed in place.

    Args:
        optimizer: clips by the global norm, if at all, and uses none of `UNFUSED`.
        grads, trainable_variables: the arguments of `apply`.
        step: called with a list of (gradient, variable, index of the variable), the divisor still to be applied to the
            gradients (a tensor, or None), and the learning rate.
    """
    import torch

    variables = list(optimizer._trainable_variables if trainable_variables is None else trainable_variables)
    if not optimizer.built:
        optimizer.build(variables)
    given = [
        (grad.contiguous(), variable, optimizer._get_variable_index(variable))
        for grad, variable in zip(grads, variables, strict=True)
        if grad is not None
    ]
    batches, done = optimizer.gradient_accumulation_steps or 1, int(optimizer._iterations)
    with torch.no_grad():
        if batches > 1:
            given = _add_up(optimizer, given, is_first=done % batches == 0)
        if (done + 1) % batches == 0:
            scale = _find_scale([grad for grad, _, _ in given], optimizer, batches)
            step(given, scale, float(optimizer.learning_rate))
    optimizer._iterations.assign_add(1)  # counts batches; `iterations` counts steps


def _add_up(
    optimizer: Any, given: list[tuple[Tensor, keras.Variable, int]], is_first: bool
) -> list[tuple[Tensor, keras.Variable, int]]:
    """Add gradients to the accumulated ones of the step, and return the sums in their place."""
    grads = {index: grad for grad, _, index in given}
    for index, place in enumerate(optimizer._accumulated_gradients):
        if index in grads:
            (place.value.copy_ if is_first else place.value.add_)(grads[index])
        elif is_first:
            place.value.zero_()
    return [(optimizer._accumulated_gradients[index].value, variable, index) for _, variable, index in given]


def _find_scale(grads: list[Tensor], optimizer: Any, batches: int) -> Tensor | None:
    """Return the divisor of summed gradients: the number of batches, times the clipping factor of their mean."""
    import torch

    if optimizer.global_clipnorm is None or not grads:
        return None if batches == 1 else torch.tensor(float(batches))
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads))) / batches
    clipped = torch.clamp(norm / optimizer.global_clipnorm, min=1.0) + (norm - norm)  # infinite norms make it NaN
    return batches * clipped


def step_by_torch(
    weights: list[Tensor],
    gradients: list[Tensor],
    momentums: list[Tensor],
    velocities: list[Tensor],
    done: int,
    rate: float,
    constants: tuple[float, float, float],
    weight_decay: float,
    scale: Tensor | None = None,
) -> None:
    """Take an AdamW step in place with PyTorch's fused kernel.

    Args:
        weights, gradients, momentums, velocities: PyTorch tensors on a CPU, lists of equal length.
        done: number of previous steps.
        rate: the learning rate.
        constants: beta_1, beta_2 and epsilon, the last as defined by Keras.
        weight_decay: decoupled decay.
        scale: divisor of the gradients, a tensor or None.
    """
    import torch

    if not weights:
        return
    beta_1, beta_2, epsilon = constants
    # What `torch.optim.AdamW(fused=True)` calls, which first makes a tensor of steps for each weight.
    torch._fused_adamw_(
        weights,
        gradients,
        momentums,
        velocities,
        [],
        [torch.tensor(float(done + 1))] * len(weights),
        grad_scale=scale,
        amsgrad=False,
        beta1=beta_1,
        beta2=beta_2,
        lr=rate,
        weight_decay=weight_decay,
        # PyTorch adds epsilon to the root of the bias-corrected moment, Keras to that of the uncorrected one.
        eps=epsilon / math.sqrt(1 - beta_2 ** (done + 1)),
        maximize=False,
    )


# Batched Muon step: orthogonalise all matrices together, for PyTorch on a CPU.


def orthogonalise_together(
    matrices: Sequence[Tensor], product_type: str, coefficients: tuple[float, float, float], iterations: int
) -> list[Tensor]:
    """Orthogonalise a list of matrices, with the result of `optimizers.adam.orthogonalise` for each.

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
    first, second, third = coefficients
    for positions in rows.values():
        wide = [stack.mT if stack.shape[1] > stack.shape[2] else stack for stack in map(stacks.__getitem__, positions)]
        values = torch.cat(wide)
        values = values / (torch.linalg.vector_norm(values, dim=(-2, -1), keepdim=True) + 1e-7)
        values = values.to(getattr(torch, product_dtype(product_type)))
        for _ in range(iterations):
            gram = torch.bmm(values, values.mT)
            gram = torch.baddbmm(gram, gram, gram, beta=second, alpha=third)
            values = torch.baddbmm(values, gram, values, beta=first)
        values = values.to(matrices[0].dtype)
        for position, part in zip(positions, values.split([len(stack) for stack in wide]), strict=True):
            inputs, outputs = stacks[position].shape[1:]
            part = (part.mT if inputs > outputs else part) * max(1.0, outputs / inputs) ** 0.5
            found[position] = part.reshape(matrices[position].shape)
    return found


def step_matrices(
    weights: list[Tensor],
    gradients: list[Tensor],
    momentums: list[Tensor],
    directions_of: Callable[[list[Tensor]], list[Tensor]],
    momentum: float,
    rates: Sequence[float],
    decay: float,
    scale: Tensor | None,
) -> None:
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
