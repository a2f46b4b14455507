"""Time and memory of a local and a global block of ModernBERT over the length of a row.

    python -m benchmarks.local_attention
    python -m benchmarks.local_attention --lengths 512 2048 8192 --width 256 --heads 4

Each cell is a process of its own, which runs forward and backward passes of one block on rows of random numbers, with
one thread: the best of `--repeats` in processor time, and the peak of memory above that before the first pass. A local
block computes the scores of three blocks of keys for each query, so both grow with the length; a global one computes
all. The last two columns are ratios to the first length: a row that is k times as long takes k where time is linear.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
KINDS = ("local", "global")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", nargs="+", type=int, default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--local-attention", type=int, default=128, help="width of the window, as in ModernBERT")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--cell", nargs=2, metavar=("KIND", "LENGTH"), help=argparse.SUPPRESS)  # a process of its own
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    if arguments.cell:
        print(json.dumps(measure(arguments, arguments.cell[0], int(arguments.cell[1]))))
        return
    print("| block | tokens | seconds | MB | seconds, × the first | MB, × the first |", "|---|" + "---:|" * 5, sep="\n")
    for kind in KINDS:
        first: list[float] = []
        for length in arguments.lengths:
            command = [sys.executable, "-m", "benchmarks.local_attention", *sys.argv[1:], "--cell", kind, str(length)]
            environment = os.environ | {"KERAS_BACKEND": "torch", "OMP_NUM_THREADS": "1"}
            done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
            seconds, size = json.loads(done.stdout.splitlines()[-1])
            first = first or [seconds, size]
            ratios = f"{seconds / first[0]:.1f} | {size / first[1]:.1f}"
            print(f"| {kind} | {length:,} | {seconds:.2f} | {size:,.0f} | {ratios} |", flush=True)


def measure(arguments: argparse.Namespace, kind: str, length: int) -> tuple[float, float]:
    """Return the processor seconds of a forward and backward pass, and the megabytes that it needs at most."""
    import torch

    from keras_bert_flow.layers.prenorm import make_pre_norm_blocks
    from keras_bert_flow.models.families.modernbert import ModernBertShape

    torch.manual_seed(1)
    shape = ModernBertShape(
        vocabulary_size=100,
        num_layers=2,
        num_heads=arguments.heads,
        hidden_dim=arguments.width,
        intermediate_dim=arguments.width * 3 // 2,
        max_positions=length,
        local_attention=arguments.local_attention,
        global_every=2,
    )
    block = make_pre_norm_blocks(shape, "float32", "block")[KINDS[::-1].index(kind)]
    inputs, mask = torch.randn(1, length, arguments.width, requires_grad=True), torch.ones(1, length, dtype=torch.int32)
    block(inputs[:, :8], mask[:, :8])  # builds it
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seconds = []
    for _ in range(arguments.repeats):
        started = time.process_time()
        block(inputs, mask, training=True).square().sum().backward()
        seconds.append(time.process_time() - started)
    return min(seconds), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


if __name__ == "__main__":
    main()
