"""Resolve `precision: auto` to float32 or mixed bfloat16, from the backend and the hardware of this machine.

Keys, saved files and comparisons never contain `auto`: it is replaced before the first key is computed.
"""

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from keras_bert_flow.config.machine import CPU_INFO, read_fields
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.pretraining import AUTO

FLOAT32, BFLOAT16 = "float32", "mixed_bfloat16"
SECTIONS = ("pretraining", "finetuning")
# CPU flags of Intel and AMD for bfloat16 products, which the two backends below use; XLA does not.
PROCESSOR_FLAGS = {"avx512_bf16", "amx_bf16"}
BACKENDS_WITH_PRODUCTS = {"torch", "tensorflow"}
ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel0", "/dev/vfio/0", "/dev/dxg")
CHILD = "keras_bert_flow.distribution.accelerators"


def resolve_precision(config: PipelineConfig, backend: str | None = None) -> PipelineConfig:
    """Return the configuration with every `precision: auto` replaced by a precision.

    Args:
        backend: the backend that trains; by default the configuration's.
    """
    sections = {name: getattr(config, name) for name in SECTIONS}
    chosen = {name: section for name, section in sections.items() if section.precision == AUTO}
    if not chosen:
        return config
    precision = choose_precision(backend or config.backend)
    return config.model_copy(
        update={name: section.model_copy(update={"precision": precision}) for name, section in chosen.items()}
    )


def choose_precision(backend: str) -> str:
    """Return `mixed_bfloat16` if training in it is faster on this machine, else `float32`.

    Only if a device file suggests an accelerator is the backend queried, in a process of its own, since a flow and
    `--plan` load no backend.
    """
    if any(os.path.exists(path) for path in ACCELERATORS):
        answer = ask_backend(backend)
        if answer is not None:
            return BFLOAT16 if answer else FLOAT32
    return choose_for_processor(backend, read_processor_flags())


def choose_for_processor(backend: str, flags: Collection[str]) -> str:
    """Return the faster precision on a processor with the given flags."""
    return BFLOAT16 if backend in BACKENDS_WITH_PRODUCTS and PROCESSOR_FLAGS & set(flags) else FLOAT32


def read_processor_flags(path: str | Path = CPU_INFO) -> frozenset[str]:
    """Return the flags of the first processor as Linux lists them; empty on other systems."""
    found = read_fields(Path(path), "flags")
    return frozenset(found[0].split() if found else ())


def ask_backend(backend: str) -> bool | None:
    """Return whether a backend's accelerator supports bfloat16; None if the backend would use no accelerator."""
    child = subprocess.run([sys.executable, "-m", CHILD, backend], stdout=subprocess.PIPE, text=True, check=False)
    words = child.stdout.split()
    return {"yes": True, "no": False}.get(words[-1]) if child.returncode == 0 and words else None
