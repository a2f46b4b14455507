"""Train for many steps on each backend and print the resident memory on the way, as a Markdown table.

    python benchmarks/training_memory.py
    python benchmarks/training_memory.py --backends torch --maskings dynamic --steps 500 1000 2000

Exit status 1 if a run crashes or grows by more than `--max-growth` percent between the first and the last of the steps.
Each run is a process of its own, started with `-X faulthandler`, which calls `pretrain()` and keeps freed memory as
`kbf pretrain` does. The model is tiny (2 layers of 64 units, dropout 0.1, 8 sequences of 32 tokens), so that what each
step, log line, evaluation or checkpoint leaves behind is not hidden by the weights. The records are random. Memory is
what Linux counts as resident (VmRSS), read when a line of the log is reported.
"""

import argparse
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
BACKENDS = ("jax", "tensorflow", "torch")
MASKINGS = ("static", "dynamic")
SEQUENCE_LENGTH = 32
MODEL = {"num_layers": 2, "hidden_dim": 64, "num_heads": 2, "intermediate_dim": 256, "max_positions": SEQUENCE_LENGTH}
LOG_EVERY_STEPS = 50


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backends", nargs="+", default=BACKENDS, choices=BACKENDS)
    parser.add_argument("--maskings", nargs="+", default=MASKINGS, choices=MASKINGS)
    parser.add_argument(
        "--steps", nargs="+", type=int, default=(500, 1000, 2000, 5000, 10000, 20000), help="multiples of 50"
    )
    parser.add_argument("--save-every", type=int, default=250, help="steps between checkpoints and evaluations")
    parser.add_argument("--max-growth", type=float, default=2.0, help="percent")
    parser.add_argument("--timeout-seconds", type=float, default=7200)
    parser.add_argument("--here", help=argparse.SUPPRESS)  # a folder: train in this process and print the numbers
    arguments = parser.parse_args()
    arguments.steps = sorted(arguments.steps)
    if any(step % LOG_EVERY_STEPS or step < 1 for step in arguments.steps):
        parser.error(f"Steps must be positive multiples of {LOG_EVERY_STEPS}. Received: {arguments.steps}.")
    return arguments


def train(folder: Path, steps: list[int], masking: str, save_every: int) -> None:
    """Pre-train and print the resident bytes at some steps."""
    sys.path.insert(0, str(ROOT))  # the package, and the tests, which know how to write a small folder of records
    from keras_bert_flow.backends.runtime import keep_freed_memory

    keep_freed_memory()
    from keras_bert_flow.training.pretraining.pretrain import pretrain
    from tests.oracles.objective_records import write_objective_records
    from tests.oracles.tiny_records import make_tiny_config

    records = write_objective_records(folder / "records", documents=400, sequence_length=SEQUENCE_LENGTH)
    config = make_tiny_config(
        MODEL,
        masking=masking,
        batch_size=8,
        learning_rate=1e-3,
        total_steps=max(steps),
        log_every_steps=LOG_EVERY_STEPS,
        evaluate_every_steps=save_every,
        checkpoint_every_steps=save_every,
        evaluate_instances=100,
    )

    def report(line):
        if line["step"] in steps:
            used = resource.getrusage(resource.RUSAGE_SELF)
            print("resident", line["step"], resident_bytes(), used.ru_utime + used.ru_stime, flush=True)

    pretrain(config, records, folder / "output", report)


def resident_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))


def measure(backend: str, masking: str, arguments: argparse.Namespace) -> tuple[list[int], float]:
    """Return the resident bytes of a process of its own at each of the steps, and the CPU seconds between two steps.

    Raises:
        RuntimeError: it crashed.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-X", "faulthandler", __file__, "--here", folder, "--maskings", masking]
        command += ["--save-every", str(arguments.save_every), "--steps", *map(str, arguments.steps)]
        done = subprocess.run(
            command,
            env=os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"},
            capture_output=True,
            text=True,
            timeout=arguments.timeout_seconds,
            check=False,
        )
    lines = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("resident ")]
    found = [int(resident) for _, resident, _ in lines]
    if done.returncode:
        status = signal.Signals(-done.returncode).name if done.returncode < 0 else f"status {done.returncode}"
        after = arguments.steps[len(found) - 1] if found else 0
        raise RuntimeError(f"Training on {backend} ended with {status} after step {after:,}:\n{done.stderr[-4000:]}")
    (first, _, before), (last, _, after) = lines[0], lines[-1]
    return found, (float(after) - float(before)) / max(1, int(last) - int(first))


def main() -> int:
    arguments = parse_arguments()
    steps, status = arguments.steps, 0
    if arguments.here:
        train(Path(arguments.here), steps, arguments.maskings[0], arguments.save_every)
        return 0
    header = [*(f"step {step:,}, MB" for step in steps), f"growth from step {steps[0]:,}", "CPU, ms per step"]
    print("| backend | masks | " + " | ".join(header) + " |")
    print("|---|---|" + "---:|" * len(header), flush=True)
    for backend in arguments.backends:
        for masking in arguments.maskings:
            try:
                found, seconds = measure(backend, masking, arguments)
            except RuntimeError as error:
                print(f"| {backend} | {masking} | crashed |", flush=True)
                print(error, file=sys.stderr, flush=True)
                status = 1
                continue
            growth = 100 * (found[-1] / found[0] - 1)
            cells = [f"{size / 1e6:.1f}" for size in found]
            cells += [f"{growth:+.2f} %", f"{1000 * seconds:.1f}"]
            print(f"| {backend} | {masking} | " + " | ".join(cells) + " |", flush=True)
            status = 1 if growth > arguments.max_growth else status
    return status


if __name__ == "__main__":
    sys.exit(main())
