"""Share what the timed processes have in common: their arguments, a synthetic batch, and steps run on command.

Needs NumPy only, so that a peer may have an environment of its own.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import numpy as np


def parse_shape(backends: tuple[str, ...]) -> argparse.Namespace:
    """Read the shape of the model and of the batch from the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", required=True, choices=backends)
    parser.add_argument("--precision", default="float32", choices=("float32", "mixed_bfloat16"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    for name in ("num-layers", "hidden-dim", "num-heads", "intermediate-dim", "vocabulary-size"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("batch-size", "sequence-length", "predictions"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--records", help="also train from these records, and read them alone")
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "muon"))
    parser.add_argument("--task", default="pretraining", choices=("pretraining", "classification"))
    return parser.parse_args()


def make_batch(shape: argparse.Namespace) -> dict[str, np.ndarray]:
    """Draw token ids and masked positions; the arithmetic is the same as on text."""
    rng = np.random.default_rng(0)
    size = (shape.batch_size, shape.sequence_length)
    token_ids = rng.integers(0, shape.vocabulary_size, size)
    positions = np.sort(
        [rng.permutation(shape.sequence_length)[: shape.predictions] for _ in range(shape.batch_size)], axis=-1
    )
    return {
        "token_ids": token_ids.astype("int32"),
        "segment_ids": np.sort(rng.integers(0, 2, size), axis=-1).astype("int32"),
        "padding_mask": np.ones(size, "int32"),
        "mask_positions": positions.astype("int32"),
        "mlm": np.take_along_axis(token_ids, positions, axis=-1).astype("int32"),
        "nsp": rng.integers(0, 2, shape.batch_size).astype("int32"),
    }


def endless(example: Any) -> Iterator[Any]:
    """Repeat one batch as a generator, which is what `fit` takes."""
    yield from repeat(example)


def serve(jobs: dict[str, Callable[[int], None]], measure_device_memory: Callable[[], int] | None = None) -> None:
    """Run a job for as many steps as each line of the standard input says, and answer with its seconds.

    Args:
        jobs: name → what runs that many steps and returns when the device has done them.
        measure_device_memory: peak bytes of the device; without it, of the process.
    """
    answer, sys.stdout = sys.stdout, sys.stderr  # whatever else is printed must not stand among the answers
    for line in sys.stdin:
        job, steps = line.split()
        wall, processor = time.perf_counter(), time.process_time()
        jobs[job](int(steps))
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        used = measure_device_memory or (lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
        print(json.dumps({"wall": wall, "cpu": processor, "bytes": used()}), file=answer, flush=True)
