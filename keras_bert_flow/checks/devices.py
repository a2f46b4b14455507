"""Accelerators by name, and the roofline of a program compiled for one.

Nothing is measured: a program is the list of kernels that a device would run, and each takes at least the time to move
its inputs and outputs, or to multiply.
"""

import math
import re
from dataclasses import dataclass, field
from typing import Any

GPU, TPU = "gpu", "tpu"
# Shares of the peak that good kernels reach: of the memory's bandwidth, and of the multiplications.
BANDWIDTH_SHARE, PEAK_SHARE = 0.87, 0.7
LAUNCH_SECONDS = 1.5e-6  # between the kernels of a program on a GPU


@dataclass(frozen=True)
class Device:
    """An accelerator, or a slice of several chips.

    Attributes:
        name: as it is asked for.
        kind: `gpu` or `tpu`.
        memory_bytes: of a chip.
        bytes_per_second: bandwidth of a chip's memory.
        peak_flops: bfloat16 products per second of a chip, accumulated in float32, without sparsity.
        chips: number of chips.
        topology: XLA's name of the chips and their arrangement.
        target: of a GPU: what XLA's compiler must know of it.
    """

    name: str
    kind: str
    memory_bytes: float
    bytes_per_second: float
    peak_flops: float
    chips: int = 1
    topology: str = "1x1x1"
    target: str = ""


@dataclass(frozen=True)
class _Gpu:
    """Figures of a GPU. Source: NVIDIA's data sheets (SXM forms) and architecture white papers."""

    title: str
    memory_bytes: float
    bytes_per_second: float
    peak_flops: float
    cores: int  # streaming multiprocessors
    fpus: int  # for float32, of a core
    threads: int  # of a core at most
    capability: tuple[int, int]
    gigahertz: float
    cache_bytes: int
    shared_bytes: int  # per core

    def describe(self) -> str:
        """Return the description that XLA takes, a text of `GpuTargetConfigProto`."""
        major, minor = self.capability
        block = self.shared_bytes - 1024
        return (
            "gpu_device_info {\n"
            "threads_per_block_limit: 1024\nthreads_per_warp: 32\nshared_memory_per_block: 49152\n"
            f"shared_memory_per_core: {self.shared_bytes}\nthreads_per_core_limit: {self.threads}\n"
            f"core_count: {self.cores}\nfpus_per_core: {self.fpus}\n"
            "block_dim_limit_x: 2147483647\nblock_dim_limit_y: 65535\nblock_dim_limit_z: 65535\n"
            f"memory_bandwidth: {self.bytes_per_second:.0f}\nl2_cache_size: {self.cache_bytes}\n"
            f"clock_rate_ghz: {self.gigahertz}\ndevice_memory_size: {self.memory_bytes:.0f}\n"
            f"shared_memory_per_block_optin: {block}\n"
            f"cuda_compute_capability {{ major: {major} minor: {minor} }}\n"
            "registers_per_core_limit: 65536\nregisters_per_block_limit: 65536\n}\n"
            'platform_name: "CUDA"\ndnn_version_info { major: 9 minor: 8 }\n'
            f'device_description_str: "{self.title}"\n'
        )


GPUS = {
    "h100": _Gpu("NVIDIA H100 80GB HBM3", 80e9, 3.35e12, 989e12, 132, 128, 2048, (9, 0), 1.98, 52428800, 233472),
    "h200": _Gpu("NVIDIA H200", 141e9, 4.8e12, 989e12, 132, 128, 2048, (9, 0), 1.98, 52428800, 233472),
    "a100": _Gpu("NVIDIA A100-SXM4-80GB", 80e9, 2.039e12, 312e12, 108, 64, 2048, (8, 0), 1.41, 41943040, 167936),
    "rtx4090": _Gpu("NVIDIA GeForce RTX 4090", 24e9, 1.008e12, 165e12, 128, 128, 1536, (8, 9), 2.52, 75497472, 102400),
}
# Memory, bandwidth and peak of a chip; how many of the numbers in a slice's name make a chip. Source: Google Cloud's
# pages of TPU versions.
TPUS = {
    "v4": (32e9, 1.228e12, 275e12, 2),
    "v5e": (16e9, 0.819e12, 197e12, 1),
    "v5p": (95e9, 2.765e12, 459e12, 2),
    "v6e": (32e9, 1.64e12, 918e12, 1),
}
# Arrangements of the chips of a slice: of versions with a plane of chips, and with a cube of them
PLANES = {4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
CUBES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"}


def find_device(name: str) -> Device:
    """Return a device by name: one of `GPUS`, or a TPU slice such as v5e-8 or v5p-32.

    Raises:
        ValueError: there is no such device.
    """
    if name in GPUS:
        gpu = GPUS[name]
        return Device(
            name, GPU, gpu.memory_bytes, gpu.bytes_per_second, gpu.peak_flops, topology="1x1x1", target=gpu.describe()
        )
    version, _, count = name.partition("-")
    if version in TPUS and count.isdecimal():
        memory, bandwidth, peak, cores = TPUS[version]
        chips, arrangements = int(count) // cores, PLANES if cores == 1 else CUBES
        if chips in arrangements and int(count) % cores == 0:
            return Device(name, TPU, memory, bandwidth, peak, chips, f"{version}:{arrangements[chips]}")
    slices = ", ".join(f"{version}-{4 * cores}" for version, (*_, cores) in TPUS.items())
    raise ValueError(
        f"A device must be one of {', '.join(GPUS)}, or a TPU slice of 4 to 256 chips, such as {slices}. "
        f"Received: {name}."
    )


BYTES = {"bf16": 2, "f16": 2, "f32": 4, "s32": 4, "u32": 4, "pred": 1, "u8": 1, "s8": 1, "s64": 8, "u64": 8}
BYTES |= {"f64": 8, "u16": 2, "s16": 2}
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_ARRAY = re.compile(rf"\b({'|'.join(BYTES)})\[([\d,]*)\]")
_COMPUTATION = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")
_INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)")
_FREE = ("parameter", "get-tuple-element", "tuple", "bitcast", "constant", "iota", "after-all", "partition-id")


@dataclass(frozen=True)
class Instruction:
    """An instruction of a program in XLA's text form (HLO), without the layouts of its arrays."""

    name: str
    type: str
    operation: str
    rest: str  # operands and attributes

    @property
    def operands(self) -> list[str]:
        depth, end = 1, len(self.rest)
        for place, letter in enumerate(self.rest):
            depth += (letter == "(") - (letter == ")")
            if not depth:
                end = place
                break
        return re.findall(r"%([\w.\-]+)", self.rest[:end])


@dataclass
class Program:
    """What a compiled program moves and multiplies on one chip.

    Attributes:
        kernels: number of them.
        moved_bytes: inputs and outputs of all kernels.
        flops: of matrix products.
        collectives: kind → number and bytes.
        seconds: at least: the sum over the kernels of the longer of both, at the shares of the peak above.
    """

    kernels: int = 0
    moved_bytes: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0
    collectives: dict[str, list[float]] = field(default_factory=dict)


def read_program(text: str, device: Device) -> Program:
    """Add up the kernels of a program in XLA's text form, compiled for a device."""
    computations, entry = _parse(text)
    types = {each.name: each.type for each in computations[entry]}
    program = Program()
    for each in computations[entry]:
        if each.operation in _FREE or each.operation.endswith("-done"):
            continue
        moved = _size(each.type) + sum(_size(types.get(name, "")) for name in each.operands)
        products = _count_product(each, types) + _count_called(computations, each)
        products += _count_attention(each) if "__cudnn$fmha" in each.rest else 0.0
        kind = each.operation.removesuffix("-start")
        if kind in COLLECTIVES:
            counted = program.collectives.setdefault(kind, [0, 0.0])
            counted[0] += 1
            counted[1] += sum(_size(types.get(name, "")) for name in each.operands)
        program.kernels += 1
        program.moved_bytes += moved
        program.flops += products
        by_memory = moved / (BANDWIDTH_SHARE * device.bytes_per_second)
        by_products = products / (PEAK_SHARE * device.peak_flops)
        program.seconds += max(by_memory, by_products) + (LAUNCH_SECONDS if device.kind == GPU else 0.0)
    return program


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
            # Attributes hold braces of their own, which the products need.
            computations[current].append(Instruction(name, kind, operation, line.split(f" {operation}(", 1)[-1]))
    return computations, entry


def _count_products(computations: dict[str, list[Instruction]], name: str) -> float:
    """Return the operations of the matrix products in a computation and those that it calls."""
    types = {each.name: each.type for each in computations[name]}
    return sum(_count_product(each, types) + _count_called(computations, each) for each in computations[name])


def _count_called(computations: dict[str, list[Instruction]], each: Instruction) -> float:
    called = re.findall(r"calls=%?([\w.\-]+)", each.rest)
    return sum(_count_products(computations, name) for name in called if name in computations)


def _count_product(each: Instruction, types: dict[str, str]) -> float:
    """Return 2 · outputs · contracted of a matrix product, 0 for other instructions."""
    if each.operation not in ("dot", "convolution"):
        return 0.0
    left, right = (types.get(operand, "") for operand in each.operands[:2])
    outputs = math.prod(_sizes(each.type))
    axes = re.search(r"lhs_contracting_dims=\{([\d,]+)\}", each.rest)
    if axes:
        sizes = _sizes(left)
        contracted: float = math.prod(sizes[int(axis)] for axis in axes.group(1).split(","))
    else:  # a product written as a convolution: outputs · contracted² = left · right
        contracted = (math.prod(_sizes(left)) * math.prod(_sizes(right)) / max(outputs, 1)) ** 0.5
    return 2.0 * outputs * contracted


def _count_attention(each: Instruction) -> float:
    """Return the operations of cuDNN's attention: two products of length · length, five in the gradient."""
    batch, heads, length, width = _sizes(each.type)[:4]
    return (10.0 if "Backward" in each.rest else 4.0) * batch * heads * length * length * width


def _sizes(kind: str) -> list[int]:
    found: Any = _ARRAY.search(kind)
    return [int(size) for size in found.group(2).split(",") if size] if found else []


def _size(kind: str) -> int:
    """Return the bytes of an array, or of all arrays of a tuple."""
    return sum(
        BYTES[dtype] * math.prod(int(size) for size in sizes.split(",") if size)
        for dtype, sizes in _ARRAY.findall(kind)
    )
