"""Fused cross-entropy, dropout and element-wise functions."""

import functools
import hashlib
import math
from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_bert_flow.backends.values import Tensor, is_outside_scopes, is_recording, value_of


def is_computable(tensor: Tensor) -> bool:
    """Return whether this module supports a tensor: float32, PyTorch, on a CPU, and not within `torch.compile`."""
    if keras.backend.backend() != "torch":
        return False
    import torch

    return tensor.device.type == "cpu" and tensor.dtype == torch.float32 and not torch.compiler.is_compiling()


def best_classes(logits: Tensor) -> Tensor:
    """Return the argmax of each row of logits, the first of ties; NumPy is far faster than PyTorch here."""
    import torch

    if is_recording():
        return logits.argmax(-1)
    return torch.from_numpy(logits.detach().numpy().argmax(axis=-1))


def _make_functions() -> tuple[Any, Any]:
    """Return `cross_entropies` and `divergences`, with their gradients; None on the other backends."""
    if keras.backend.backend() != "torch":
        return None, None
    import torch

    def log_sums(logits: Tensor, probabilities: Tensor, origin: Tensor | float = 0.0) -> Tensor:
        # Computed from the largest logit, whose probability is at least 1 / classes: others may be rounded to 0.
        return logits.amax(-1) - origin - probabilities.amax(-1).log()

    class CrossEntropies(torch.autograd.Function):
        """The cross-entropy of each row, -log softmax(logits)[label], (rows,).

        PyTorch saves all log-probabilities, exponentiates them again for the gradient, and allocates a tensor of zeros
        of the same size for the labels. Here the probabilities are saved and turned into the gradient in place, so only
        one backward pass is possible: PyTorch raises an error at a second one.

        Args:
            logits: float32, (rows, classes), for which `is_computable` is true.
            labels: int, (rows,).
        """

        @staticmethod
        def forward(ctx: Any, logits: Tensor, labels: Tensor) -> Tensor:
            labels = labels.long()[:, None]
            probabilities = torch.softmax(logits, -1)
            ctx.save_for_backward(probabilities, labels)
            return log_sums(logits, probabilities, logits.gather(1, labels)[:, 0])

        @staticmethod
        def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, ...]:
            probabilities, labels = ctx.saved_tensors
            probabilities.mul_(gradients[:, None])
            return probabilities.scatter_add_(1, labels, -gradients[:, None]), None

    class Divergences(torch.autograd.Function):
        """The Kullback-Leibler divergence of softmax(logits / temperature) from softmax(targets / temperature).

        The result lacks the last axis. Only the difference of the two distributions is saved for the gradient, where
        autograd of the formula would save five tensors of that size. Only one backward pass is possible, and `targets`
        gets no gradient.

        Args:
            logits, targets: float32, (..., classes), for which `is_computable` is true.
            temperature: above 0; higher values soften both distributions.
        """

        @staticmethod
        def forward(ctx: Any, logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
            logits, targets = logits / temperature, targets / temperature
            shares, guesses = torch.softmax(targets, -1), torch.softmax(logits, -1)
            apart = log_sums(logits, guesses) - log_sums(targets, shares)
            # A matrix product; PyTorch's `vecdot` would materialise all products.
            apart += (shares[..., None, :] @ targets.sub_(logits)[..., None])[..., 0, 0]
            ctx.save_for_backward(guesses.sub_(shares))
            ctx.temperature = temperature
            return apart

        @staticmethod
        def backward(ctx: Any, gradients: Tensor) -> tuple[Tensor | None, ...]:
            (differences,) = ctx.saved_tensors
            return differences.mul_((gradients / ctx.temperature)[..., None]), None, None

    return CrossEntropies.apply, Divergences.apply


cross_entropies, divergences = _make_functions()


# Fuse a chain of element-wise operations into one pass over memory.


def fuse(function: Callable) -> Callable[..., Any]:
    """Compile a function of tensors with XLA on TensorFlow; return it unchanged on the other backends.

    Without XLA, TensorFlow passes over memory once per operation and saves each result for the gradient. JAX compiles
    the whole training step anyway. Matrix products must stay outside: XLA has no bfloat16 ones on a CPU. Under a
    TensorFlow distribution strategy nothing is compiled, as in Keras.
    """
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow

    compiled = tensorflow.function(function, jit_compile=True)

    @functools.wraps(function)
    def run(*arguments: Tensor) -> Tensor:
        return (function if tensorflow.distribute.has_strategy() else compiled)(*arguments)

    return run


# Dropout with random numbers that are cheap to draw on each backend.

STEPS = 1 << 16  # a draw has 16 bits: rates are rounded to within 8e-6, and kept values are scaled accordingly


def dropped_steps(rate: float) -> int:
    """Return a dropout rate as a number of the `STEPS` possible values of a draw."""
    return min(round(rate * STEPS), STEPS - 1)


def next_seed(generator: keras.random.SeedGenerator) -> Tensor:
    """Return the next seed of a generator, on PyTorch without Keras' operations, which take as long as the draw."""
    if keras.backend.backend() != "torch":
        return generator.next()
    import torch

    state = value_of(generator.state)
    if is_outside_scopes():
        seed = state.clone()
        state.add_(_next_draw(state.dtype, state.device))
    else:
        seed = state * 1  # a copy
        generator.state.assign(seed + torch.arange(2, dtype=seed.dtype, device=seed.device))
    return seed


@functools.cache
def _next_draw(dtype: Any, device: Any) -> Tensor:
    """Return what leads from one state of a seed generator to the next."""
    import torch

    return torch.arange(2, dtype=dtype, device=device)


def _drop_by_hash(inputs: Tensor, seed: Tensor, dropped: int) -> Tensor:
    """Drop values by hashing each value's index with the seed, which XLA fuses with the surrounding operations.

    Keras uses threefry on JAX, 20 rounds per value, which take longer than the product of the attention scores.
    """
    seed = ops.cast(seed, "uint32")
    numbers = ops.reshape(ops.cast(ops.arange(ops.size(inputs), dtype="int32"), "uint32"), ops.shape(inputs))
    first, second = (
        _mix(ops.bitwise_xor(seed[0], _mix(seed[1]))),
        _mix(seed[0] + _mix(ops.bitwise_xor(seed[1], _word(0x9E3779B9)))),
    )
    draws = _mix(_mix(ops.bitwise_xor(numbers, first)) + second)
    is_kept = ops.right_shift(draws, _word(16)) >= _word(dropped)
    scaled = ops.cast(inputs, "float32") * (STEPS / (STEPS - dropped))  # bfloat16 would round the factor itself
    return ops.cast(ops.where(is_kept, scaled, 0.0), inputs.dtype)


def _drop_in_torch(inputs: Tensor, seed: Tensor, dropped: int) -> Tensor:
    """Drop values with four draws from each random number of PyTorch, whose `bernoulli_` takes one number per value."""
    import torch

    if inputs.device.type == "meta":
        return torch.empty_like(inputs)
    draw = _draw_uncompiled() if torch.compiler.is_compiling() else _draw_in_torch
    draw = _draw_as_one if is_recording() else draw
    if inputs.device.type != "cpu":  # no generator of PyTorch takes its seed from the device without waiting for it
        draw = _draw_by_hash
    draws = draw(list(inputs.shape), seed)
    mask = torch.empty(inputs.shape, dtype=inputs.dtype, device=inputs.device)
    torch.ge(draws, dropped - STEPS // 2, out=mask)
    scale = STEPS / (STEPS - dropped)
    if inputs.dtype == torch.float32:
        return inputs * mask.mul_(scale)
    return (inputs * mask) * scale  # a mask of 1.111 would be rounded to 1.109 in bfloat16, which biases all values


def _draw_in_torch(shape: list[int], seed: Tensor) -> Tensor:
    """Return random 16-bit integers, int16, on the device of the seed."""
    import torch

    # The CPU generator takes a 32-bit seed, which must depend on both words of ours.
    digest = hashlib.blake2b(str(seed.tolist()).encode(), digest_size=4).digest()
    generator, count = torch.Generator(seed.device), math.prod(shape)
    generator.manual_seed(int.from_bytes(digest, "little"))
    numbers = torch.empty((count + 3) // 4, dtype=torch.int64, device=seed.device)
    return numbers.random_(-(2**63), None, generator=generator).view(torch.int16)[:count].view(shape)


@functools.cache
def _draw_uncompiled() -> Callable[[list[int], Tensor], Tensor]:
    import torch

    return torch.compiler.disable(_draw_in_torch)


def _draw_by_hash(shape: list[int], seed: Tensor) -> Tensor:
    """Return random 16-bit integers, int16: both halves of the hash of an index and the seed; see `_drop_by_hash`."""
    import torch

    def mix(x: torch.Tensor) -> torch.Tensor:  # `_mix` in signed numbers, whose shift has to leave out the sign
        for bits, factor in ((16, 0x7FEB352D), (15, 0x846CA68B - 2**32)):
            x = (x ^ (x >> bits & (1 << 32 - bits) - 1)) * factor
        return x ^ (x >> 16 & 0xFFFF)

    first, second = seed.to(torch.int64).to(torch.int32).unbind()
    count = math.prod(shape)
    numbers = torch.arange((count + 1) // 2, dtype=torch.int32, device=seed.device)
    draws = mix(mix(numbers ^ mix(first ^ mix(second))) + mix(first + mix(second ^ (0x9E3779B9 - 2**32))))
    return draws.view(torch.int16)[:count].view(shape)


def _make_draw() -> tuple[Any, Any]:
    """Return `_draw_in_torch` as one operation, which looks at the seed when it runs and not when it is recorded.

    Also returns its library, with which it would vanish. `torch.library.custom_op` would look at all arguments and
    results in each call, which takes as long as a small draw.
    """
    if keras.backend.backend() != "torch":
        return None, None
    import torch

    library = torch.library.Library(__package__.partition(".")[0], "FRAGMENT")
    library.define("draw(SymInt[] shape, Tensor seed) -> Tensor")
    library.impl("draw", _draw_in_torch, "CPU")
    name = f"{library.ns}::draw"
    torch.library.register_fake(
        name, lambda shape, seed: torch.empty(shape, dtype=torch.int16, device=seed.device), lib=library
    )
    return getattr(torch.ops, library.ns).draw.default, library


_draw_as_one, _library = _make_draw()


drop_values = _drop_in_torch if keras.backend.backend() == "torch" else fuse(_drop_by_hash)


def _mix(x: Tensor) -> Tensor:
    """Hash 32-bit integers.

    Source: Ellis 2018, "Prospecting for Hash Functions", `lowbias32`: flipping an input bit flips each output bit with
    a probability within 0.2 % of a half.
    """
    x = ops.bitwise_xor(x, ops.right_shift(x, _word(16))) * _word(0x7FEB352D)
    x = ops.bitwise_xor(x, ops.right_shift(x, _word(15))) * _word(0x846CA68B)
    return ops.bitwise_xor(x, ops.right_shift(x, _word(16)))


def _word(value: int) -> Tensor:
    return ops.convert_to_tensor(value, "uint32")
