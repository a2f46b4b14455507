"""Compile a step of a model for JAX devices that are not here, and add up what it moves and multiplies.

XLA's compilers need a description of the devices, not the devices. A model is built on the processors of this machine,
one for each device of a copy, with the layouts that training on real devices gives its weights; its step is compiled
for the described devices with the same layouts.
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from keras_bert_flow.backends.kernels import compiled_for
from keras_bert_flow.distribution.jax_cluster import BATCH, MODEL, JaxCluster, make_layout
from keras_bert_flow.layers.shape import EncoderShape


def describe_chips(topology: str, target: str = "") -> list[Any]:
    """Return descriptions of devices for the compiler.

    Args:
        topology: XLA's name of the chips and their arrangement, such as v5e:2x4; 1x1x1 for a GPU.
        target: of a GPU: a text of `GpuTargetConfigProto`. Empty for a TPU.
    """
    if not target:
        return topologies.get_topology_desc(topology, "tpu").devices
    import jax_plugins.xla_cuda12

    with suppress(jax.errors.JaxRuntimeError):  # JAX has found the plugin by itself, and refuses the second
        jax_plugins.xla_cuda12.initialize()
    return topologies.get_topology_desc(platform="cuda", topology=topology, target_config=target).devices


def share_copy(shape: EncoderShape, sharding: Mapping[str, tuple], count: int) -> AbstractContextManager:
    """Return the context in which to build a model of which `count` devices share a copy.

    This machine must have as many devices: `--xla_force_host_platform_device_count` in `XLA_FLAGS`.

    Args:
        sharding: of the weights of a block; see `models.families.family.Family`.
    Raises:
        ValueError: the heads or the feed-forward width do not divide evenly.
    """
    return JaxCluster(count, make_layout(shape, sharding, count), count).scope() if count > 1 else nullcontext()


def compile_step(model: Any, batch: Any, chips: list[Any], count: int = 1, training: bool = True) -> Any:
    """Compile the step of a compiled Keras model, data parallel over the copies of the model.

    Args:
        model: built in the context of `share_copy`.
        batch: what `fit` gives to a step, as NumPy arrays: inputs, labels and, if there are any, weights.
        chips: of `describe_chips`.
        count: number of chips that share a copy.
        training: whether the step trains; otherwise it evaluates.
    Returns:
        `jax.stages.Compiled`.
    """
    model._symbolic_build(data_batch=batch)  # of Keras' trainers; there is no public way to build losses and metrics
    groups = [model.trainable_variables, model.non_trainable_variables]
    if training:
        model.optimizer.build(model.trainable_variables)
        groups.append(model.optimizer.variables)
    state = tuple([variable.value for variable in group] for group in (*groups, model.metrics_variables))
    mesh = Mesh(np.array(chips).reshape(-1, count), (BATCH, MODEL))
    layouts = jax.tree.map(
        lambda value: NamedSharding(mesh, getattr(value.sharding, "spec", PartitionSpec())),  # none: on one device
        state,
    )
    step = jax.jit(
        model.train_step if training else model.test_step,
        in_shardings=(layouts, NamedSharding(mesh, PartitionSpec(BATCH))),
        donate_argnums=0,
    )
    shapes = jax.tree.map(lambda value: jax.ShapeDtypeStruct(value.shape, value.dtype), (state, batch))
    with compiled_for(mesh):
        return step.lower(*shapes).compile()


# The roofline of a compiled program. Nothing is measured: it is the list of kernels that a device would run, and each
# takes at least the time to move its inputs and outputs, or to multiply.

# Shares of the peak that good kernels reach: of the memory's bandwidth, and of the multiplications.
BANDWIDTH_SHARE, PEAK_SHARE = 0.87, 0.7
BYTES = {"bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "pred": 1, "u8": 1, "s8": 1, "s64": 8, "u64": 8}
BYTES |= {"f64": 8, "u16": 2, "s16": 2}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_ARRAY = re.compile(rf"\b({'|'.join(BYTES)})\[([\d,]*)\]")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)")
_SLICES = ("slice", "dynamic-slice", "slice-start")
_FREE = ("parameter", "get-tuple-element", "tuple", "bitcast", "constant", "iota", "after-all", "partition-id")


@dataclass(frozen=True)
class Instruction:
    """An instruction of a program in XLA's text form (HLO), without the layouts of its arrays."""

    name: str
    type: str
    operation: str
    operands: list[str]
    rest: str  # operands and attributes


@dataclass
class Program:
    """What a compiled program moves and multiplies on one chip.

    Attributes:
        kernels: number of them.
        moved_bytes: inputs and outputs of all kernels.
        flops: of matrix products.
        collectives: kind → bytes of each, the largest first.
        seconds: at least: the sum over the kernels of the longer of both, at the shares of the peak above.
    """

    kernels: int = 0
    moved_bytes: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0
    collectives: dict[str, list[int]] = field(default_factory=dict)


def read_program(text: str, bytes_per_second: float, peak_flops: float, launch_seconds: float = 0.0) -> Program:
    """Add up the kernels of a program in XLA's text form; those of a loop once for each turn.

    Args:
        bytes_per_second: bandwidth of a chip's memory.
        peak_flops: products per second of a chip.
        launch_seconds: between two kernels.
    """
    computations, entry = _parse(text)
    program = Program(collectives=_list_collectives(computations, entry))
    for each, types, turns in _list_kernels(computations, entry):
        moved = _count_moved(computations, each, types)
        products = _count_products(computations, each, types)
        if each.operation == "custom-call":
            products += _count_attention(each, types)
        program.kernels += turns
        program.moved_bytes += turns * moved
        program.flops += turns * products
        by_memory, by_products = moved / (BANDWIDTH_SHARE * bytes_per_second), products / (PEAK_SHARE * peak_flops)
        program.seconds += turns * (max(by_memory, by_products) + launch_seconds)
    return program


def _list_kernels(
    computations: dict[str, list[Instruction]], name: str, turns: int = 1
) -> Iterator[tuple[Instruction, dict[str, str], int]]:
    """Yield the instructions of a computation and of its loops that take time, the types there, and their turns."""
    types = {each.name: each.type for each in computations[name]}
    for each in computations[name]:
        if each.operation == "while":
            yield from _list_kernels(computations, _find_called(each, "body"), turns * _count_turns(computations, each))
        elif each.operation not in _FREE and not each.operation.endswith("-done"):
            yield each, types, turns


def _find_called(each: Instruction, role: str) -> str:
    found = re.search(rf"\b{role}=%?([\w.\-]+)", each.rest)
    return found.group(1) if found else ""


def _count_turns(computations: dict[str, list[Instruction]], loop: Instruction) -> int:
    """Return how often a loop runs: as the compiler notes it, or the bound of its counter, which a scan begins at 0."""
    if known := re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.rest):
        return int(known.group(1))
    condition = computations.get(_find_called(loop, "condition"), [])
    constants = [int(each.rest.split(")")[0]) for each in condition if each.operation == "constant"]
    if len(constants) != 1 or " direction=LT" not in condition[-1].rest:
        raise ValueError(f"A loop of a program must have a number of turns. Received: {loop.name}, {condition}.")
    return constants[0]


def _count_moved(computations: dict[str, list[Instruction]], each: Instruction, types: dict[str, str]) -> int:
    """Return the bytes of the inputs and outputs of an instruction; of a stack of arrays those of the slice in use."""
    inputs = [_size(types.get(name, "")) for name in each.operands]
    if each.operation in ("copy-start", "slice-start"):  # whose type has the input as well
        return 2 * (_size(each.type) - inputs[0])
    if each.operation in _SLICES:
        return 2 * _size(each.type)
    if each.operation == "dynamic-update-slice":
        return 2 * inputs[1]
    if each.operation != "fusion":
        return _size(each.type) + sum(inputs)
    read = (_count_read(computations, each, place) for place in range(len(inputs)))
    return _count_written(computations, each) + sum(read)


def _count_written(computations: dict[str, list[Instruction]], fusion: Instruction) -> int:
    """Return the bytes that a fusion writes: its outputs, or what it replaces in them."""
    called = computations.get(_find_called(fusion, "calls"), [])
    inner, written = {each.name: each for each in called}, 0
    if not called:
        return _size(fusion.type)
    for name in called[-1].operands if called[-1].operation == "tuple" else [called[-1].name]:
        output = inner[name]
        while output.operation == "bitcast" and output.operands[0] in inner:
            output = inner[output.operands[0]]
        if output.operation == "fusion":
            written += _count_written(computations, output)
        else:
            is_replaced = output.operation == "dynamic-update-slice"
            written += _size(inner[output.operands[1]].type if is_replaced else output.type)
    return written


def _count_read(computations: dict[str, list[Instruction]], fusion: Instruction, place: int) -> int:
    """Return the bytes that a fusion reads of an input: all, unless it takes slices or replaces a part in place."""
    called = computations.get(_find_called(fusion, "calls"), [])
    names = [each.name for each in called if each.operation == "parameter" and each.rest.startswith(f"{place})")]
    if not names:
        return 0
    whole, read = next(_size(each.type) for each in called if each.name == names[0]), 0
    for each in called:
        used = [number for number, name in enumerate(each.operands) if name in names]
        if used and each.operation == "bitcast":
            names.append(each.name)
        elif used and each.operation == "fusion":
            read += sum(_count_read(computations, each, number) for number in used)
        elif used and each.operation in _SLICES:
            read += _size(each.type)
        elif used and (each.operation != "dynamic-update-slice" or used != [0]):
            return whole
    return min(read, whole)


def _list_collectives(computations: dict[str, list[Instruction]], entry: str) -> dict[str, list[int]]:
    """Return the bytes of each collective, those of a loop in each of its turns."""
    found: dict[str, list[int]] = {}
    for name, turns in _count_calls(computations, entry).items():
        types = {each.name: each.type for each in computations[name]}
        for each in computations[name]:  # a fusion may hold a collective that runs beside its kernel
            kind = each.operation.removesuffix("-start")
            if kind in COLLECTIVES:
                size = sum(_size(types.get(operand, "")) for operand in each.operands)
                found.setdefault(kind, []).extend([size] * turns)
    return {kind: sorted(sizes, reverse=True) for kind, sizes in found.items()}


def _count_calls(computations: dict[str, list[Instruction]], entry: str) -> dict[str, int]:
    """Return computation → how often a step runs it: once, or as often as the loops around it turn."""
    calls, waiting = dict.fromkeys(computations, 1), [entry]
    while waiting:
        name = waiting.pop()
        for each in computations[name]:
            turns = _count_turns(computations, each) if each.operation == "while" else 1
            for called in re.findall(r"\b(?:calls|body|to_apply|branch_computations)=\{?%?([\w.\-]+)", each.rest):
                if called in computations:
                    calls[called] = calls[name] * turns
                    waiting.append(called)
    return calls


def _parse(text: str) -> tuple[dict[str, list[Instruction]], str]:
    computations: dict[str, list[Instruction]] = {}
    current, entry = "", ""
    for line in text.splitlines():
        if opening := _COMPUTATION.match(line):
            current = opening.group(2)
            computations[current] = []
            entry = current if opening.group(1) else entry
        elif current and (found := _INSTRUCTION.match(re.sub(r"\{[^{}]*\}", "", line))):
            name, kind, operation, _ = found.groups()
            rest = line.split(f" {operation}(", 1)[-1]  # attributes hold braces of their own, which the products need
            depth, end = 1, len(rest)
            for place, letter in enumerate(rest):
                depth += (letter == "(") - (letter == ")")
                if not depth:
                    end = place
                    break
            operands = re.findall(r"%([\w.\-]+)", rest[:end])
            computations[current].append(Instruction(name, kind, operation, operands, rest))
    return computations, entry


def _count_products(computations: dict[str, list[Instruction]], each: Instruction, types: dict[str, str]) -> float:
    """Return the operations of the matrix products of an instruction, and of the computations that it calls.

    A product has 2 · outputs · contracted.
    """
    total = 0.0
    for name in re.findall(r"calls=%?([\w.\-]+)", each.rest):
        inner = computations.get(name, [])
        inner_types = {one.name: one.type for one in inner}
        total += sum(_count_products(computations, one, inner_types) for one in inner)
    if each.operation not in ("dot", "convolution"):
        return total
    left, right = (_sizes(types.get(operand, "")) for operand in each.operands[:2])
    if each.operation == "convolution":
        return total + _count_convolution(each, left, right)
    axes = re.search(r"lhs_contracting_dims=\{([\d,]+)\}", each.rest)
    contracted = math.prod(left[int(axis)] for axis in axes.group(1).split(",")) if axes else 1
    return total + 2.0 * math.prod(_sizes(each.type)) * contracted


def _count_attention(each: Instruction, types: dict[str, str]) -> float:
    """Return the operations of a kernel of attention: two products of queries and keys, or five in the gradient.

    Splash attention multiplies the blocks of its grid alone, of which the first operand has one number each.
    """
    if "__cudnn$fmha" in each.rest:
        batch, heads, length, width = _sizes(each.type)[:4]
        return (10.0 if "Backward" in each.rest else 4.0) * batch * heads * length * length * width
    if not each.name.startswith("splash_"):
        return 0.0
    grid = _sizes(types[each.operands[0]])
    batch, heads, length, width = next(
        sizes for sizes in (_sizes(types[name]) for name in each.operands[1:]) if len(sizes) == 4
    )
    pairs = math.prod(grid[1:]) * (length / max(grid[1:])) ** 2
    return (4.0 if "_fwd_" in each.name else 10.0) * batch * heads * pairs * width


def _count_convolution(each: Instruction, left: list[int], right: list[int]) -> float:
    """Return the operations of a convolution, as which a program for a TPU has its matrix products.

    A batch of products is a spatial axis where the dilation leaves one place of the window in the input, and an axis
    that is summed over is one whose window is the whole input.
    """
    found = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", each.rest)
    if not found or (len(found.group(1)), len(found.group(2))) != (len(left), len(right)):
        return 0.0
    inputs, kernel, outputs = found.groups()
    window = re.search(r"window=\{(.*?)\}", each.rest)
    given = {name: values.split("x") for name, values in re.findall(r"(\w+)=(\S+)", window.group(1) if window else "")}
    count = 2.0 * left[inputs.index("b")] * right[kernel.index("i")] * right[kernel.index("o")]
    for axis, label in enumerate(sorted(filter(str.isdigit, outputs))):
        size, places = left[inputs.index(label)], _sizes(each.type)[outputs.index(label)]
        stride, dilation, apart = (
            int(given[name][axis]) if name in given else 1 for name in ("stride", "lhs_dilate", "rhs_dilate")
        )
        padding = int(given["pad"][axis].split("_")[0]) if "pad" in given else 0
        steps = range(right[kernel.index(label)])
        reached = [place * stride + step * apart - padding for place in range(places) for step in steps]
        count *= sum(0 <= at <= (size - 1) * dilation and at % dilation == 0 for at in reached)
    return count


def _sizes(kind: str) -> list[int]:
    found: Any = _ARRAY.search(kind)
    return [int(size) for size in found.group(2).split(",") if size] if found else []


def _size(kind: str) -> int:
    """Return the bytes of an array, or of all arrays of a tuple."""
    return sum(
        BYTES[dtype] * math.prod(int(size) for size in sizes.split(",") if size)
        for dtype, sizes in _ARRAY.findall(kind)
    )
