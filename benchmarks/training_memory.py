"""Print the memory of a pre-training process after 100 to 2,000 steps on each backend, as a Markdown table.

    python benchmarks/training_memory.py
    python benchmarks/training_memory.py --backends torch --steps 100 1000 10000

The model and its records are tiny, so that what each step, line of the log, evaluation or checkpoint leaves behind is
not hidden by the weights. The records are drawn at random. Memory is what Linux counts as resident (VmRSS), read when a
line of the log is reported: every 10 steps there is one, every 50 an evaluation and a checkpoint.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BACKENDS = ("jax", "tensorflow", "torch")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--steps", nargs="+", type=int, default=(100, 500, 1000, 2000), help="multiples of 10")
    parser.add_argument("--timeout-seconds", type=float, default=1200)
    parser.add_argument("--here", help=argparse.SUPPRESS)  # a folder: train in this process and print the numbers
    return parser.parse_args()


def train(folder: Path, steps: list[int]) -> None:
    """Pre-train and print the resident bytes at some steps."""
    sys.path.insert(0, str(ROOT))  # the package, and the tests, which know how to write a small folder of records
    from keras_bert_flow.training.pretrain import pretrain
    from tests.oracles.tiny_records import make_tiny_config, write_tiny_records

    records = write_tiny_records(folder / "records", train=(130, 100), held_out=20)
    config = make_tiny_config(
        total_steps=max(steps), log_every_steps=10, evaluate_every_steps=50, checkpoint_every_steps=50
    )

    def report(line):
        if line["step"] in steps:
            print("resident", line["step"], resident_bytes(), flush=True)

    pretrain(config, records, folder / "output", report)


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def measure(backend: str, steps: list[int], timeout_seconds: float) -> list[int]:
    """Return the resident bytes at each of the steps, of a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--here", folder, "--steps", *map(str, steps)]
        done = subprocess.run(
            command,
            env=os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            timeout=timeout_seconds,
            check=False,
        )
    if done.returncode:
        raise RuntimeError(f"Training failed with status {done.returncode}: {done.stderr[-2000:]}")
    return [int(line.split()[2]) for line in done.stdout.splitlines() if line.startswith("resident ")]


def main() -> None:
    arguments = parse_arguments()
    steps = sorted(arguments.steps)
    if arguments.here:
        train(Path(arguments.here), steps)
        return
    print("| backend |" + "".join(f" step {step:,}, MB |" for step in steps) + f" growth from step {steps[0]:,} |")
    print("|---|" + "---:|" * (len(steps) + 1), flush=True)
    for backend in arguments.backends:
        found = measure(backend, steps, arguments.timeout_seconds)
        cells = [f"{size / 1e6:.1f}" for size in found] + [f"{100 * (found[-1] / found[0] - 1):+.2f} %"]
        print(f"| {backend} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
