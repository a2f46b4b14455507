"""Compile the pre-training step of a configuration for a device that is not here: `kbf run --plan --device DEVICE`.

XLA's compilers for GPUs and TPUs come with wheels that need no device. They lie in a folder of their own, because JAX
looks for a GPU whenever it finds them among the installed packages. The step is that of `kbf pretrain` on JAX, over the
chips of a slice as the section `distribution` has it, compiled by a process of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from keras_bert_flow.checks.devices import GPU, TPU, Device, find_device
from keras_bert_flow.checks.estimates import count_pieces, find_batch_widths
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.distribution.cluster import check_batches
from keras_bert_flow.models.sizes import resolve_shape

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
LAUNCH_SECONDS = 1.5e-6  # between the kernels of a program on a GPU
TIMEOUT_SECONDS = 1800
PATIENCE_SECONDS = 300  # of compiling, after which the plan says how to shorten it


@contextmanager
def compiling_for(
    config: PipelineConfig, name: str, has_own_precision: bool = True
) -> Iterator[Callable[[], list[str]]]:
    """Compile the step of a configuration for a device beside what the caller does; end the compiler on leaving.

    Yields a function that waits, and returns lines on what its pre-training takes there, one block per phase.

    Args:
        name: of a device or of a file that describes one; see `find_device`.
        has_own_precision: whether the configuration says its precision; if not, it is the best of this machine, and
            the device computes in mixed bfloat16.
    Raises:
        ValueError: there is no such device, the step does not compile for it, or the wheels of the compiler are
            missing; the message has the command to install them.
        ModuleNotFoundError: JAX is missing.
    """
    device = find_device(name)
    folder = find_compilers(device)
    _check_chips(config, device)
    if not has_own_precision:
        settings = config.pretraining.model_copy(update={"precision": "mixed_bfloat16"})
        config = config.model_copy(update={"pretraining": settings})
    first, *later = config.phases
    with ExitStack() as processes:

        def start(phase: PipelineConfig) -> subprocess.Popen:
            process = _start(phase, device, folder)
            processes.callback(_end, process)
            return process

        started = start(first)

        def describe() -> list[str]:
            lines = _describe(first, device, _finish(started, device))
            for phase in later:  # one after the other, as each takes much memory
                lines += _describe(phase, device, _finish(start(phase), device))
            return lines

        yield describe


def _check_chips(config: PipelineConfig, device: Device) -> None:
    """Raise ValueError unless training with this configuration would use all chips of a slice evenly."""
    settings = config.distribution
    count, wanted = settings.model_parallel or 1, 1 if settings.kind == "single" else settings.devices
    if (wanted or device.chips) != device.chips:
        raise ValueError(
            f"`distribution` must use all {device.chips} chips of {device.name}. Received: kind={settings.kind}, "
            f"devices={settings.devices}. Set distribution.kind=auto without devices."
        )
    if device.chips % count:
        raise ValueError(
            f"`distribution.model_parallel` must divide the chips of the device. Received: {count}, {device.name} with "
            f"{device.chips}. Choose another slice."
        )
    check_batches(config, device.chips // count)


def check_device(name: str, is_planned: bool) -> None:
    """Raise an error unless a plan is asked for, the device is known and its compiler is there."""
    if not is_planned:
        raise ValueError(f"`--device` must go with --plan: nothing runs there. Received: --device {name}. Add --plan.")
    find_compilers(find_device(name))


def find_compilers(device: Device) -> Path:
    """Return the folder of the compiler's wheels; errors as for `compiling_for`."""
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


def compiler_environment(device: Device, folder: Path, count: int = 1) -> dict[str, str]:
    """Return the environment variables of a process that compiles for a device.

    Args:
        count: devices that share a copy of the model; the process has as many.
    """
    libraries = [str(path) for path in sorted(folder.glob("nvidia/*/lib"))]
    flags = [os.environ.get("XLA_FLAGS", ""), f"--xla_force_host_platform_device_count={count}"]
    if device.kind == GPU:  # tuning would run kernels
        flags += [f"--xla_gpu_cuda_data_dir={folder}/nvidia/cuda_nvcc", "--xla_gpu_autotune_level=0"]
    return {
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is used; the second of two processes would be refused
        "TPU_LIBRARY_PATH": str(folder / "libtpu" / "libtpu.so"),
        "XLA_FLAGS": " ".join(filter(None, flags)),
        "PATH": os.pathsep.join([str(folder / "nvidia/cuda_nvcc/bin"), os.environ.get("PATH", "")]),
        "LD_LIBRARY_PATH": os.pathsep.join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]),
    }


def _start(phase: PipelineConfig, device: Device, folder: Path) -> subprocess.Popen:
    """Start a process that compiles; see `main`."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as given:  # arguments could be read by others, and be too long
        given.write(phase.model_dump_json())
        given.seek(0)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "keras_bert_flow.checks.ahead", json.dumps(asdict(device)), str(folder)],
            env=os.environ | compiler_environment(device, folder, phase.distribution.model_parallel or 1),
            stdin=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def _finish(process: subprocess.Popen, device: Device) -> dict[str, Any]:
    """Wait for a process that compiles, and return what it found."""
    try:
        output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired as error:
        raise ValueError(
            f"The step must compile for {device.name} within {TIMEOUT_SECONDS // 60} minutes. Received: no program. "
            "Try it on a machine that does nothing else."
        ) from error
    lines = output.splitlines()
    if process.returncode or not lines:
        reason = (errors.strip().splitlines() or [f"status {process.returncode}"])[-1]
        raise ValueError(f"The step must compile for {device.name}. Received: {reason[:300]}")
    return json.loads(lines[-1])


def _end(process: subprocess.Popen) -> None:
    process.kill()
    process.communicate()


def _describe(config: PipelineConfig, device: Device, found: dict[str, Any]) -> list[str]:
    settings = config.pretraining
    chips = f", {device.chips} chips" if device.chips > 1 else ""
    used, there = found["memory_bytes"] / 2**30, device.memory_bytes / 2**30
    fits = found["memory_bytes"] <= FITS * device.memory_bytes
    remedy = "" if fits else f" {_advise(config, device)}"
    is_uniform = resolve_shape(config.model, count_pieces(config)).is_uniform
    is_scannable = is_uniform and config.backend == "jax" and not settings.scan_layers
    is_slow = device.kind == TPU and found["compile_seconds"] > PATIENCE_SECONDS and is_scannable
    shorter = " Set pretraining.scan_layers=true to compile faster, for more memory and time a step." if is_slow else ""
    seconds = found["seconds"]
    share = found["flops"] / (seconds * find_peak(config, device))
    lines = [
        f"On {device.name}{chips}, {settings.precision}, {settings.batch_size} sequences of "
        f"{found['sequence_length']} tokens a step, compiled for it in {found['compile_seconds']:.0f} s:{shorter}",
        f"Memory: {used:.2f} GiB a chip of {there:.1f}: {'fits' if fits else 'does not fit'}.{remedy}",
        f"Step: {found['kernels']:,} kernels move {found['moved_bytes'] / 1e9:.1f} GB and multiply "
        f"{found['flops'] / 1e12:.2f} TFLOP a chip: {seconds * 1e3:.1f} ms at best, {share:.0%} of the peak.",
    ]
    for kind, sizes in sorted(found["collectives"].items()):
        least = sum(sizes) / device.link_bytes_per_second if device.link_bytes_per_second else 0.0
        duration = f"at least {least * 1e3:.1f} ms, " if least else ""
        lines.append(
            f"Between chips: {len(sizes)} {kind} of {sum(sizes) / 1e6:.1f} MB a step, {duration}not in the time above."
        )
    hours = seconds * settings.total_steps / 3600
    lines.append(f"Run: {settings.total_steps:,} steps take {hours:.2f} hours at best, without reading and saving.")
    return lines


def find_peak(config: PipelineConfig, device: Device) -> float:
    """Return the products per second of a chip in the precision of a configuration."""
    return device.float32_flops if config.pretraining.precision == "float32" else device.peak_flops


def _advise(config: PipelineConfig, device: Device) -> str:
    settings = config.pretraining
    if not settings.rematerialise:
        return "Set pretraining.rematerialise=true, which keeps less for the gradients."
    if settings.batch_size > device.chips:
        return (
            f"Set pretraining.batch_size={settings.batch_size // 2} and "
            f"pretraining.accumulate_batches={settings.accumulate_batches * 2}."
        )
    if device.chips > 1 and config.distribution.model_parallel is None:
        return "Set distribution.kind=model_parallel and distribution.model_parallel=2."
    return "Take a smaller model, or a device with more memory."


# The process that compiles: the only part that imports JAX and Keras.


def main(description: str, folder: str) -> None:
    """Compile the step of the configuration on standard input, and print what it takes as one line of JSON."""
    sys.path.insert(0, folder)
    device = Device(**json.loads(description))
    config = PipelineConfig.model_validate_json(sys.stdin.read())
    peak_flops = find_peak(config, device)
    import keras

    from keras_bert_flow.distribution.jax_ahead import compile_step, describe_chips, read_program, share_copy
    from keras_bert_flow.models.families.family import find_family
    from keras_bert_flow.training.pretraining.pretrainers import compile_pretrainer, make_pretrainer

    keras.config.set_dtype_policy(config.pretraining.precision)
    pieces, count = count_pieces(config), config.distribution.model_parallel or 1
    with share_copy(resolve_shape(config.model, pieces), find_family(config.model.family).sharding, count):
        model = make_pretrainer(config.model, pieces, config.records.objective, config.pretraining)
        compile_pretrainer(model, config)
        batch = _make_batch(model, config)
        started_at = time.monotonic()
        compiled = compile_step(model, batch, describe_chips(device.topology, device.target), count)
    launch_seconds = LAUNCH_SECONDS if device.kind == GPU else 0.0
    program = read_program(compiled.as_text(), device.bytes_per_second, peak_flops, launch_seconds)
    memory = compiled.memory_analysis()
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
