"""Describe this machine, and choose the precision that trains fastest on it, without loading a backend."""

import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "NPROC")  # of PyTorch and BLAS, of TensorFlow, of jax
_BYTES_OF_UNIT = 1 if sys.platform == "darwin" else 1024  # getrusage(2)
GPUS = Path("/proc/driver/nvidia/gpus")  # NVIDIA's driver on Linux: a folder per GPU, with `information`


def describe_processor() -> str:
    """Return the processor and its number of cores, as in `AMD EPYC, 2 cores`."""
    names = read_fields(CPU_INFO, "model name")
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def describe_machine() -> str:
    """Return the processor, and the GPUs of the machine whether or not they are used."""
    gpus = [name for path in sorted(GPUS.glob("*/information")) for name in read_fields(path, "Model")]
    counted = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    return "; ".join([describe_processor(), *counted])


def share_cores(runs: int) -> dict[str, str]:
    """Return environment variables that give each of several runs its share of the cores; empty for one run.

    Each backend takes all cores otherwise, and PyTorch's threads wait for each other in a loop: beside another busy
    process it trained at a tenth of the speed of one thread. What the user has set stays.
    """
    threads = max(1, (os.cpu_count() or 1) // runs)
    return {name: str(threads) for name in THREADS if runs > 1 and name not in os.environ}


def read_peak_memory(who: int = resource.RUSAGE_SELF) -> int:
    """Return the peak memory in bytes of this process, or of the largest child process that it has waited for."""
    return resource.getrusage(who).ru_maxrss * _BYTES_OF_UNIT


def read_fields(path: Path, name: str) -> list[str]:
    """Return the values of the `name : value` lines of a system file; empty if the file cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [value.strip() for key, colon, value in (line.partition(":") for line in lines) if key.strip() == name]


# Choose between float32 and mixed bfloat16, from the backend and the hardware of this machine.

FLOAT32, BFLOAT16 = "float32", "mixed_bfloat16"
# CPU flags of Intel and AMD for bfloat16 products, which the two backends below use; XLA does not.
PROCESSOR_FLAGS = {"avx512_bf16", "amx_bf16"}
BACKENDS_WITH_PRODUCTS = {"torch", "tensorflow"}
ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel0", "/dev/vfio/0", "/dev/dxg")
CHILD = "keras_bert_flow.distribution.accelerators"


def choose_precision(backend: str) -> str:
    """Return `mixed_bfloat16` if training in it is faster on this machine, else `float32`.

    Only if a device file suggests an accelerator is the backend queried, in a process of its own, since a flow and
    `--plan` load no backend.
    """
    if any(os.path.exists(path) for path in ACCELERATORS):
        answer = ask_backend(backend)
        if answer is not None:
            return BFLOAT16 if answer else FLOAT32
    flags = {flag for value in read_fields(CPU_INFO, "flags")[:1] for flag in value.split()}  # of the first processor
    return BFLOAT16 if backend in BACKENDS_WITH_PRODUCTS and PROCESSOR_FLAGS & flags else FLOAT32


def ask_backend(backend: str) -> bool | None:
    """Return whether a backend's accelerator supports bfloat16; None if the backend would use no accelerator."""
    child = subprocess.run([sys.executable, "-m", CHILD, backend], stdout=subprocess.PIPE, text=True, check=False)
    words = child.stdout.split()
    return {"yes": True, "no": False}.get(words[-1]) if child.returncode == 0 and words else None
