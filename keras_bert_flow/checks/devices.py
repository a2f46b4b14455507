"""Accelerators that a step can be compiled for: those known by name, and those that a file describes."""

import math
from dataclasses import dataclass, fields, replace
from pathlib import Path

from keras_bert_flow.config.devices import DeviceFile
from keras_bert_flow.config.loading import load_config

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
        float32_flops: float32 products per second as JAX computes them: TF32 on a GPU, bfloat16 on a TPU.
        link_bytes_per_second: what a chip sends to others, in all directions together; 0 if it is not known.
        chips: number of chips.
        topology: XLA's name of the chips and their arrangement.
        target: of a GPU: what XLA's compiler must know of it.
    """

    name: str
    kind: str
    memory_bytes: float
    bytes_per_second: float
    peak_flops: float
    float32_flops: float
    link_bytes_per_second: float = 0.0
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
# Memory, bandwidth, peak and links of a chip; how many of the numbers in a slice's name make a chip. Source: Google
# Cloud's pages of TPU versions, which give links in both directions; of v4: Jouppi et al. 2023, arXiv:2304.01433.
TPUS = {
    "v4": (32e9, 1.228e12, 275e12, 300e9, 2),
    "v5e": (16e9, 0.819e12, 197e12, 200e9, 1),
    "v5p": (95e9, 2.765e12, 459e12, 600e9, 2),
    "v6e": (32e9, 1.64e12, 918e12, 400e9, 1),
}
# Arrangements of the chips of a slice: of versions with a plane of chips, and with a cube of them
PLANES = {4: "2x2", 8: "2x4", 16: "4x4", 32: "4x8", 64: "8x8", 128: "8x16", 256: "16x16"}
CUBES = {4: "2x2x1", 8: "2x2x2", 16: "2x2x4", 32: "2x4x4", 64: "4x4x4", 128: "4x4x8", 256: "4x8x8"}
FILES = (".yaml", ".yml", ".json")  # that may describe a device


def find_device(name: str) -> Device:
    """Return a device by name: one of `GPUS`, a TPU slice such as v5e-8 or v5p-32, or a file of a `DeviceFile`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: there is no such device, or its file describes none.
    """
    if name.endswith(FILES):
        return _read_device(name)
    if name in GPUS:
        return _make_gpu(name, GPUS[name])
    version, _, count = name.partition("-")
    if version in TPUS and count.isdecimal():
        memory, bandwidth, peak, links, cores = TPUS[version]
        chips, arrangements = int(count) // cores, PLANES if cores == 1 else CUBES
        if chips in arrangements and int(count) % cores == 0:
            topology = f"{version}:{arrangements[chips]}"
            return Device(name, TPU, memory, bandwidth, peak, peak, links, chips, topology)
    slices = ", ".join(f"{version}-{4 * cores}" for version, (*_, cores) in TPUS.items())
    raise ValueError(
        f"A device must be one of {', '.join(GPUS)}, or a TPU slice of 4 to 256 chips, such as {slices}, or a file "
        f"({', '.join(FILES)}) that describes one. Received: {name}."
    )


def _make_gpu(name: str, gpu: _Gpu) -> Device:
    peak = gpu.peak_flops
    return Device(name, GPU, gpu.memory_bytes, gpu.bytes_per_second, peak, peak / 2, target=gpu.describe())


# Devices that a file describes.

_OF_GPU = {each.name for each in fields(_Gpu)} - {"memory_bytes", "bytes_per_second", "peak_flops"}


def _read_device(path: str) -> Device:
    """Return the device of a file; errors as for `find_device`."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"The description of a device must be a file. Received: {path}. Check the path.")
    given = load_config(path, (), DeviceFile)
    if given.like.endswith(FILES):
        raise ValueError(f"{path}: `like` must be the name of a known device. Received: {given.like}. Try h200.")
    base = find_device(given.like)
    values = given.model_dump(exclude={"like"}, exclude_none=True)
    if foreign := sorted(values.keys() & ({"topology"} if base.kind == GPU else _OF_GPU)):
        raise ValueError(
            f"{path}: `{foreign[0]}` must not be given for a {base.kind.upper()}. Received: like: {given.like}. "
            "Leave it out."
        )
    if base.kind == GPU:
        of_gpu = {each.name: values.pop(each.name) for each in fields(_Gpu) if each.name in values}
        base = _make_gpu(path, replace(GPUS[given.like], **of_gpu))
    elif "peak_flops" in values:
        values.setdefault("float32_flops", values["peak_flops"])
    if "topology" in values:
        version, _, arrangement = base.topology.partition(":")
        sizes = [int(size) for size in values["topology"].split("x")]
        if len(sizes) != len(arrangement.split("x")) or not all(sizes):
            raise ValueError(
                f"{path}: `topology` must have as many axes as chips of {version} have. Received: "
                f"{values['topology']}. Try {arrangement}."
            )
        values |= {"topology": f"{version}:{values['topology']}", "chips": math.prod(sizes)}
    return replace(base, name=path, **values)
