"""Compile the pre-training step of a configuration for a device that is not here: `kbf run --plan --device NAME`.

XLA's compilers for GPUs and TPUs come with wheels that need no device. They lie in a folder of their own, because JAX
looks for a GPU whenever it finds them among the installed packages. The step is that of `kbf pretrain` on JAX, data
parallel over the chips of a slice, compiled by a process of its own.
"""

import json
import math
import os
import re
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from keras_bert_flow.checks.estimates import count_pieces, find_batch_widths
from keras_bert_flow.config.pipeline import PipelineConfig

# Accelerators by name.

GPU, TPU = "gpu", "tpu"


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


# What a configuration takes on a device.

COMPILERS = "KBF_COMPILERS"  # names the folder of the wheels
DEFAULT_FOLDER = "~/.cache/keras-bert-flow/compilers"
# CUDA 12: the packages of the compiler, of its assembler, and of cuDNN, whose attention the step uses
GPU_WHEELS = (
    "jax-cuda12-pjrt=={jax} jax-cuda12-plugin=={jax} nvidia-cuda-nvcc-cu12 nvidia-cudnn-cu12 "
    "nvidia-cuda-runtime-cu12 nvidia-cuda-cupti-cu12 nvidia-nvjitlink-cu12"
)
TPU_WHEELS = "libtpu"
FITS = 0.92  # of a chip's memory: the rest is the runtime's
TIMEOUT_SECONDS = 1800


def describe_device(config: PipelineConfig, name: str, has_own_precision: bool = True) -> list[str]:
    """Return lines on what the pre-training of a configuration takes on a device, one block per phase.

    Args:
        has_own_precision: whether the configuration says its precision; if not, it is the best of this machine, and
            the device computes in mixed bfloat16.
    Raises:
        ValueError: there is no such device, the step does not compile for it, or the wheels of the compiler are
            missing; the message has the command to install them.
        ModuleNotFoundError: JAX is missing.
    """
    device = find_device(name)
    folder = find_compilers(device)
    if not has_own_precision:
        settings = config.pretraining.model_copy(update={"precision": "mixed_bfloat16"})
        config = config.model_copy(update={"pretraining": settings})
    return [line for phase in config.phases for line in _describe(phase, device, _compile(phase, device, folder))]


def check_device(name: str, is_planned: bool) -> None:
    """Raise an error unless a plan is asked for, the device is known and its compiler is there."""
    if not is_planned:
        raise ValueError(f"`--device` must go with --plan: nothing runs there. Received: --device {name}. Add --plan.")
    find_compilers(find_device(name))


def find_compilers(device: Device) -> Path:
    """Return the folder of the compiler's wheels; errors as for `describe_device`."""
    try:
        installed = version("jax")
    except PackageNotFoundError as error:
        raise ModuleNotFoundError("--device compiles with jax", name="jax") from error
    folder = Path(os.environ.get(COMPILERS) or DEFAULT_FOLDER).expanduser()
    wanted = folder / ("jax_plugins/xla_cuda12" if device.kind == GPU else "libtpu/libtpu.so")
    if not wanted.exists():
        wheels = GPU_WHEELS.format(jax=installed) if device.kind == GPU else TPU_WHEELS
        raise ValueError(
            f"--device {device.name} needs a compiler for it in the folder that ${COMPILERS} names. Received: none in "
            f"{folder}. pip install --no-deps --target {folder} {wheels}"
        )
    return folder


def _compile(config: PipelineConfig, device: Device, folder: Path) -> dict[str, Any]:
    """Compile in a process of its own, and return what it found; see `main`."""
    libraries = [str(path) for path in sorted(folder.glob("nvidia/*/lib"))]
    flags = [os.environ.get("XLA_FLAGS", "")]
    if device.kind == GPU:  # tuning would run kernels
        flags += [f"--xla_gpu_cuda_data_dir={folder}/nvidia/cuda_nvcc", "--xla_gpu_autotune_level=0"]
    surroundings = {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_LIBRARY_PATH": str(folder / "libtpu" / "libtpu.so"),
        "XLA_FLAGS": " ".join(filter(None, flags)),
        "PATH": os.pathsep.join([str(folder / "nvidia/cuda_nvcc/bin"), os.environ.get("PATH", "")]),
        "LD_LIBRARY_PATH": os.pathsep.join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]),
    }
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "keras_bert_flow.checks.ahead", device.name, str(folder)],
            input=config.model_dump_json(),
            env=os.environ | surroundings,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(
            f"The step must compile for {device.name} within {TIMEOUT_SECONDS // 60} minutes. Received: no program. "
            "Try it on a machine that does nothing else."
        ) from error
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise ValueError(f"The step must compile for {device.name}. Received: {reason[:300]}")
    return json.loads(lines[-1])


def _describe(config: PipelineConfig, device: Device, found: dict[str, Any]) -> list[str]:
    settings = config.pretraining
    chips = f", {device.chips} chips" if device.chips > 1 else ""
    used, there = found["memory_bytes"] / 2**30, device.memory_bytes / 2**30
    fits = found["memory_bytes"] <= FITS * device.memory_bytes
    remedy = "" if fits else f" {_advise(config, device)}"
    seconds = found["seconds"]
    share = found["flops"] / (seconds * device.peak_flops)
    lines = [
        f"On {device.name}{chips}, {settings.precision}, {settings.batch_size} sequences of "
        f"{found['sequence_length']} tokens a step, compiled for it in {found['compile_seconds']:.0f} s:",
        f"Memory: {used:.2f} GiB a chip of {there:.1f}: {'fits' if fits else 'does not fit'}.{remedy}",
        f"Step: {found['kernels']:,} kernels move {found['moved_bytes'] / 1e9:.1f} GB and multiply "
        f"{found['flops'] / 1e12:.2f} TFLOP a chip: {seconds * 1e3:.1f} ms at best, {share:.0%} of the peak.",
    ]
    for kind, (count, moved) in sorted(found["collectives"].items()):
        lines.append(f"Between chips: {count:,.0f} {kind} of {moved / 1e6:.1f} MB a step, not in the time above.")
    hours = seconds * settings.total_steps / 3600
    lines.append(f"Run: {settings.total_steps:,} steps take {hours:.2f} hours at best, without reading and saving.")
    return lines


def _advise(config: PipelineConfig, device: Device) -> str:
    settings = config.pretraining
    if not settings.rematerialise:
        return "Set pretraining.rematerialise=true, which keeps less for the gradients."
    if settings.batch_size > device.chips:
        return (
            f"Set pretraining.batch_size={settings.batch_size // 2} and "
            f"pretraining.accumulate_batches={settings.accumulate_batches * 2}."
        )
    return "Take a smaller model, or a device with more memory."


# The roofline of a compiled program. Nothing is measured: it is the list of kernels that a device would run, and each
# takes at least the time to move its inputs and outputs, or to multiply.

# Shares of the peak that good kernels reach: of the memory's bandwidth, and of the multiplications.
BANDWIDTH_SHARE, PEAK_SHARE = 0.87, 0.7
LAUNCH_SECONDS = 1.5e-6  # between the kernels of a program on a GPU
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
        products = _count_products(computations, each, types)
        if "__cudnn$fmha" in each.rest:  # cuDNN's attention: products of length · length, two or five in the gradient
            batch, heads, length, width = _sizes(each.type)[:4]
            products += (10.0 if "Backward" in each.rest else 4.0) * batch * heads * length * length * width
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
    left, right = (types.get(operand, "") for operand in each.operands[:2])
    outputs = math.prod(_sizes(each.type))
    axes = re.search(r"lhs_contracting_dims=\{([\d,]+)\}", each.rest)
    if axes:
        sizes = _sizes(left)
        contracted: float = math.prod(sizes[int(axis)] for axis in axes.group(1).split(","))
    else:  # a product written as a convolution: outputs · contracted² = left · right
        contracted = (math.prod(_sizes(left)) * math.prod(_sizes(right)) / max(outputs, 1)) ** 0.5
    return total + 2.0 * outputs * contracted


def _sizes(kind: str) -> list[int]:
    found: Any = _ARRAY.search(kind)
    return [int(size) for size in found.group(2).split(",") if size] if found else []


def _size(kind: str) -> int:
    """Return the bytes of an array, or of all arrays of a tuple."""
    return sum(
        BYTES[dtype] * math.prod(int(size) for size in sizes.split(",") if size)
        for dtype, sizes in _ARRAY.findall(kind)
    )


# The process that compiles: the only part that imports JAX and Keras.


def main(name: str, folder: str) -> None:
    """Compile the step of the configuration on standard input, and print what it takes as one line of JSON."""
    sys.path.insert(0, folder)
    device = find_device(name)
    config = PipelineConfig.model_validate_json(sys.stdin.read())
    if config.pretraining.precision == "float32" and device.kind == GPU:
        device = replace(device, peak_flops=device.peak_flops / 2)  # of TF32, which JAX takes for float32 there
    import jax
    import keras
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from keras_bert_flow.training.pretraining.pretrainers import compile_pretrainer, make_pretrainer

    if device.kind == GPU:
        import jax_plugins.xla_cuda12

        with suppress(jax.errors.JaxRuntimeError):  # JAX has found the plugin by itself, and refuses the second
            jax_plugins.xla_cuda12.initialize()
        described = topologies.get_topology_desc(platform="cuda", topology=device.topology, target_config=device.target)
    else:
        described = topologies.get_topology_desc(device.topology, TPU)
    keras.config.set_dtype_policy(config.pretraining.precision)
    model = make_pretrainer(config.model, count_pieces(config), config.records.objective, config.pretraining)
    compile_pretrainer(model, config)
    batch = _make_batch(model, config)
    model._symbolic_build(data_batch=batch)  # of Keras' trainers; there is no public way to build losses and metrics
    model.optimizer.build(model.trainable_variables)
    groups = (model.trainable_variables, model.non_trainable_variables, model.optimizer.variables)
    state = tuple([variable.value for variable in group] for group in (*groups, model.metrics_variables))
    chips = Mesh(np.array(described.devices), ("batch",))
    everywhere, divided = NamedSharding(chips, PartitionSpec()), NamedSharding(chips, PartitionSpec("batch"))
    shapes = jax.tree.map(lambda value: jax.ShapeDtypeStruct(value.shape, value.dtype), (state, batch))
    started_at = time.monotonic()
    step = jax.jit(model.train_step, in_shardings=(everywhere, divided), donate_argnums=0)
    compiled = step.lower(*shapes).compile()
    memory, program = compiled.memory_analysis(), read_program(compiled.as_text(), device)
    result = vars(program) | {
        "memory_bytes": memory.temp_size_in_bytes + memory.argument_size_in_bytes,
        "compile_seconds": time.monotonic() - started_at,
        "sequence_length": batch[0]["token_ids"].shape[1],
    }
    sys.stdout.write(f"{json.dumps(result)}\n")
    sys.stdout.flush()


def _make_batch(model: Any, config: PipelineConfig) -> tuple[Any, ...]:
    """Return a batch of zeros in the shapes of a configuration: inputs, labels and their weights."""
    import keras
    import numpy as np

    from keras_bert_flow.models.backbone import INPUT_NAMES

    length, masks = find_batch_widths(config)
    rows = config.pretraining.batch_size
    x = {
        name: np.zeros((rows, length if name in INPUT_NAMES else masks), tensor.dtype)  # the others are by prediction
        for name, tensor in model.input.items()
    }
    outputs = model.compute_output_spec(
        {name: keras.KerasTensor(value.shape, value.dtype) for name, value in x.items()}
    )
    places = {name: output.shape[:-1] for name, output in outputs.items()}  # a label for each row of logits
    y = {name: np.zeros(shape, "int32") for name, shape in places.items()}
    return x, y, {name: np.ones(shape, "float32") for name, shape in places.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
