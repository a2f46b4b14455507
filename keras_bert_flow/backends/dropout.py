"""Dropout with random numbers that are cheap to draw on each backend."""

import hashlib

import keras
from keras import ops

from keras_bert_flow.backends.fusion import fuse

STEPS = 1 << 16  # a draw has 16 bits: rates are rounded to within 8e-6, and kept values are scaled accordingly


def dropped_steps(rate: float) -> int:
    """Return a dropout rate as a number of the `STEPS` possible values of a draw."""
    return min(round(rate * STEPS), STEPS - 1)


def _drop_by_hash(inputs, seed, dropped):
    """Drop values by hashing each value's index with the seed, which XLA fuses with the surrounding operations.

    Keras uses threefry on JAX, 20 rounds per value, which take longer than the product of the attention scores.
    """
    seed = ops.cast(seed, "uint32")
    numbers = ops.reshape(ops.cast(ops.arange(ops.size(inputs), dtype="int32"), "uint32"), ops.shape(inputs))
    first, second = _mix(_xor(seed[0], _mix(seed[1]))), _mix(seed[0] + _mix(_xor(seed[1], _word(0x9E3779B9))))
    draws = _mix(_mix(_xor(numbers, first)) + second)
    is_kept = ops.right_shift(draws, _word(16)) >= _word(dropped)
    scaled = ops.cast(inputs, "float32") * (STEPS / (STEPS - dropped))  # bfloat16 would round the factor itself
    return ops.cast(ops.where(is_kept, scaled, 0.0), inputs.dtype)


def _drop_in_torch(inputs, seed, dropped):
    """Drop values with four draws from each random number of PyTorch, whose `bernoulli_` takes one number per value."""
    import torch

    if inputs.device.type == "meta":
        return torch.empty_like(inputs)
    draws = torch.compiler.disable(_draw_in_torch)(inputs.shape, inputs.device, seed)
    mask = torch.empty(inputs.shape, dtype=inputs.dtype, device=inputs.device)
    torch.ge(draws, dropped - STEPS // 2, out=mask)
    # Two products: a mask of 1.111 would be rounded to 1.109 in bfloat16, which biases all values.
    return (inputs * mask) * (STEPS / (STEPS - dropped))


def _draw_in_torch(shape, device, seed):
    """Return random 16-bit integers, int16."""
    import torch

    # The CPU generator takes a 32-bit seed, which must depend on both words of ours.
    digest = hashlib.blake2b(str(seed.tolist()).encode(), digest_size=4).digest()
    generator = torch.Generator(device)
    generator.manual_seed(int.from_bytes(digest, "little"))
    numbers = torch.empty((shape.numel() + 3) // 4, dtype=torch.int64, device=device)
    return numbers.random_(-(2**63), None, generator=generator).view(torch.int16)[: shape.numel()].view(shape)


drop_values = _drop_in_torch if keras.backend.backend() == "torch" else fuse(_drop_by_hash)


def _mix(x):
    """Hash 32-bit integers.

    Source: Ellis 2018, "Prospecting for Hash Functions", `lowbias32`: flipping an input bit flips each output bit with
    a probability within 0.2 % of a half.
    """
    x = _xor(x, ops.right_shift(x, _word(16))) * _word(0x7FEB352D)
    x = _xor(x, ops.right_shift(x, _word(15))) * _word(0x846CA68B)
    return _xor(x, ops.right_shift(x, _word(16)))


def _xor(x, y):
    return ops.bitwise_xor(x, y)


def _word(value):
    return ops.convert_to_tensor(value, "uint32")
