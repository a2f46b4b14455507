"""Choose the arithmetic that `precision: auto` stands for, from the backend and from what this machine computes in.

Nothing that is keyed, saved or compared ever holds the word: it is replaced before the first key is made.
"""

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from keras_bert_flow.config.optimization import AUTO
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.machine import CPU_INFO, read_fields

FLOAT32, BFLOAT16 = "float32", "mixed_bfloat16"
SECTIONS = ("pretraining", "finetuning")
# What a processor of Intel or AMD calls its bfloat16 products, by which these two backends multiply; XLA does not.
PROCESSOR_FLAGS = {"avx512_bf16", "amx_bf16"}
BACKENDS_WITH_PRODUCTS = {"torch", "tensorflow"}
ACCELERATORS = ("/dev/nvidiactl", "/dev/kfd", "/dev/accel0", "/dev/vfio/0", "/dev/dxg")
CHILD = "keras_bert_flow.distribution.accelerators"


def resolve_precision(config: PipelineConfig, backend: str | None = None) -> PipelineConfig:
    """Return the configuration with a precision in each place where it says `auto`.

    Args:
        backend: what trains; by default the backend of the configuration.
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
    """Return `mixed_bfloat16` where training in it is faster on this machine, else `float32`.

    A device file says whether there may be an accelerator; only then is the backend asked, in a process of its own,
    since a flow and `--plan` start none.
    """
    if any(os.path.exists(path) for path in ACCELERATORS):
        answer = ask_backend(backend)
        if answer is not None:
            return BFLOAT16 if answer else FLOAT32
    return choose_for_processor(backend, read_processor_flags())


def choose_for_processor(backend: str, flags: Collection[str]) -> str:
    """Return what is faster on a processor with those flags."""
    return BFLOAT16 if backend in BACKENDS_WITH_PRODUCTS and PROCESSOR_FLAGS & set(flags) else FLOAT32


def read_processor_flags(path: str | Path = CPU_INFO) -> frozenset[str]:
    """Return what the first processor can do, in Linux' words; nothing elsewhere."""
    found = read_fields(Path(path), "flags")
    return frozenset(found[0].split() if found else ())


def ask_backend(backend: str) -> bool | None:
    """Return whether the accelerator that a backend would train on has bfloat16; None where it would use none."""
    child = subprocess.run([sys.executable, "-m", CHILD, backend], stdout=subprocess.PIPE, text=True, check=False)
    words = child.stdout.split()
    return {"yes": True, "no": False}.get(words[-1]) if child.returncode == 0 and words else None
