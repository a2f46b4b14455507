"""Name the processor and the GPUs of this machine, without loading a backend."""

import os
import platform
from pathlib import Path

CPU_INFO = Path("/proc/cpuinfo")
GPUS = Path("/proc/driver/nvidia/gpus")  # of NVIDIA's driver on Linux: a folder each, with `information`


def describe_processor() -> str:
    """Return the processor and the number of its cores, as in `AMD EPYC, 2 cores`."""
    names = _read_fields(CPU_INFO, "model name")
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def describe_machine() -> str:
    """Return the processor, and the GPUs that are there whether or not they are used."""
    gpus = [name for path in sorted(GPUS.glob("*/information")) for name in _read_fields(path, "Model")]
    counted = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    return "; ".join([describe_processor(), *counted])


def _read_fields(path: Path, name: str) -> list[str]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return []
    return [value.strip() for key, colon, value in (line.partition(":") for line in lines) if key.strip() == name]
