"""Time pre-training steps of each backend and precision, beside a peer if wanted, and print a Markdown table.

    python benchmarks/training_step.py
    python benchmarks/training_step.py --against kerashub --peer-python other/bin/python
    python benchmarks/training_step.py --against transformers --compile --threads 2
    python benchmarks/training_step.py --records out/records
    python benchmarks/training_step.py --size tiny --sequence-length 64 --clock cpu --against-checkout ../earlier
    python benchmarks/training_step.py --against transformers --compile --device gpu --size base --batch-size 64 \
        --backend jax torch --precision mixed_bfloat16 --peak-flops 989e12 [--sequence-length 512 --predictions 76]

A step is forward, backward and AdamW for masked-LM and next-sentence heads, with dropout .1. Each side is a process of
its own, warmed up; then they take turns, A B A B, a few steps each, and the ratio is that of the medians. Another
checkout of this package (`git worktree add ../earlier COMMIT`) runs with this interpreter and this script; beside
`--precision auto` it runs in float32, the default.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from keras_bert_flow.config.machine import choose_precision
from keras_bert_flow.config.pretraining import AUTO
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.sizes import count_flops, get_size

ROOT = Path(__file__).parents[1]
CHECKOUT = "checkout"
BATCHES_READ = 1000  # in a turn: sixteen lie ready when it begins
SHAPE = {"num_layers": 6, "hidden_dim": 384, "num_heads": 12, "intermediate_dim": 1536}


class Timed:
    """A process that runs steps when it is told to."""

    def __init__(self, process: subprocess.Popen):
        self.process = process
        self.answers: dict[str, list[dict]] = {}

    def run(self, job: str, steps: int, keep: bool = True) -> None:
        self.process.stdin.write(f"{job} {steps}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self.process.args)} ended without an answer.")
        if keep:
            self.answers.setdefault(job, []).append(json.loads(line) | {"steps": steps})

    def seconds(self, job: str, clock: str) -> float:
        """Return the median time of a step."""
        return statistics.median(answer[clock] / answer["steps"] for answer in self.answers[job])

    def gibibytes(self) -> float:
        return self.answers["step"][-1]["bytes"] / 2**30


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", nargs="+", default=("jax", "tensorflow", "torch"))
    parser.add_argument("--precision", nargs="+", default=("float32", "mixed_bfloat16"))
    parser.add_argument("--against", nargs="*", default=(), choices=("kerashub", "transformers"))
    parser.add_argument("--against-checkout", metavar="DIR", help="another checkout of this package")
    parser.add_argument("--optimizer", default="adamw", choices=("adamw", "muon"), help="of this package; muon guarded")
    parser.add_argument("--task", default="pretraining", choices=("pretraining", "classification"))
    parser.add_argument("--peer-python", default=sys.executable, help="the interpreter that has the peer")
    parser.add_argument("--compile", action="store_true", help="let the peer use torch.compile")
    parser.add_argument("--compile-ours", action="store_true", help="record and compile our step on a CPU, too")
    parser.add_argument("--device", default="cpu", choices=("cpu", "gpu"))
    parser.add_argument("--threads", type=int, default=1, help="of the processor")
    parser.add_argument("--size", help="tiny, mini, small, medium, base or large; else 6 x 384, as the options below")
    for name, value in SHAPE.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--vocabulary-size", type=int, default=30_522)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--sequence-length", type=int, default=128)
    parser.add_argument("--predictions", type=int, default=20)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--records", help="of `kbf records`: also time training from these, and reading them alone")
    parser.add_argument("--steps", type=int, default=3, help="in a turn")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    clock = "of a step: passed, or of the processor, which other work on the same core disturbs less"
    parser.add_argument("--clock", default="wall", choices=("wall", "cpu"), help=clock)
    parser.add_argument("--peak-flops", type=float, help="of the device in that precision, for the utilisation")
    return parser.parse_args()


def list_others(arguments: argparse.Namespace) -> list[str]:
    return [*arguments.against, *([CHECKOUT] if arguments.against_checkout else [])]


def shape_options(arguments: argparse.Namespace) -> list[str]:
    shape = get_size(arguments.size) if arguments.size else {name: getattr(arguments, name) for name in SHAPE}
    names = ("vocabulary_size", "batch_size", "sequence_length", "predictions", "dropout", "device")
    shape |= {name: getattr(arguments, name) for name in names}
    return [f"--{name.replace('_', '-')}={value}" for name, value in shape.items()]


@contextmanager
def timed_process(arguments: argparse.Namespace, who: str, backend: str, precision: str) -> Iterator[Timed]:
    is_ours = who in ("ours", CHECKOUT)
    command = [sys.executable if is_ours else arguments.peer_python, "-m"]
    command.append(f"benchmarks.peers.step_{'ours' if is_ours else who}")
    command += [f"--backend={backend}", f"--precision={precision}", *shape_options(arguments)]
    if arguments.compile_ours if is_ours else arguments.compile:
        command.append("--compile")
    if is_ours:
        command += [f"--optimizer={arguments.optimizer}", f"--task={arguments.task}"]
    if is_ours and arguments.records:
        command.append(f"--records={arguments.records}")
    # Another checkout is timed by its own script, which knows its modules.
    folder = Path(arguments.against_checkout).resolve() if who == CHECKOUT else ROOT
    with start_timed(command, arguments.threads, folder=folder) as timed:
        yield timed


@contextmanager
def start_timed(command: list[str], threads: int, backend: str | None = None, folder: Path = ROOT) -> Iterator[Timed]:
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    if backend is not None:
        environment["KERAS_BACKEND"] = backend
    process = subprocess.Popen(
        command, cwd=folder, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield Timed(process)
    finally:
        process.stdin.close()
        process.wait(timeout=60)


def take_turns(arguments: argparse.Namespace, sides: Sequence[Timed], jobs: Sequence[str]) -> None:
    for keep in (False, *[True] * arguments.rounds):
        for side in sides:
            side.run("step", arguments.steps, keep)
        for job in jobs:
            sides[0].run(job, BATCHES_READ if job == "reading" else arguments.steps, keep)


def flops_per_step(arguments: argparse.Namespace) -> int:
    sizes = get_size(arguments.size) if arguments.size else {name: getattr(arguments, name) for name in SHAPE}
    shape = EncoderShape(arguments.vocabulary_size, **sizes)
    flops = count_flops(shape, arguments.sequence_length, arguments.predictions)
    return arguments.batch_size * flops.training


def measure(arguments: argparse.Namespace, backend: str, precision: str) -> list[str]:
    chosen = choose_precision(backend) if precision == AUTO else precision
    label = precision if precision == chosen else f"{precision}: {chosen}"
    jobs = ("job", "reading") if arguments.records else ()
    tokens = arguments.batch_size * arguments.sequence_length
    with ExitStack() as stack:
        names = ["ours", *list_others(arguments)]
        sides = [
            stack.enter_context(
                timed_process(
                    arguments,
                    name,
                    "torch" if name == "transformers" else backend,
                    "float32" if name == CHECKOUT and precision == AUTO else chosen,
                )
            )
            for name in names
        ]
        take_turns(arguments, sides, jobs)
    seconds = [side.seconds("step", arguments.clock) for side in sides]
    row = [backend, label, f"{1000 * seconds[0]:,.0f}", f"{tokens / seconds[0]:,.0f}"]
    for theirs in seconds[1:]:
        row += [f"{tokens / theirs:,.0f}", f"{theirs / seconds[0]:.2f}"]
    row += [f"{tokens / sides[0].seconds(job, arguments.clock):,.0f}" for job in jobs]
    row += [f"{arguments.batch_size / seconds[0]:,.1f}", f"{flops_per_step(arguments) / seconds[0] / 1e9:,.0f}"]
    if arguments.peak_flops:
        row.append(f"{flops_per_step(arguments) / seconds[0] / arguments.peak_flops:.3f}")
    return row + [" / ".join(f"{side.gibibytes():.2f}" for side in sides)]


def main() -> None:
    arguments = parse_arguments()
    header = ["backend", "precision", "ms a step", "tokens/s"]
    for name in list_others(arguments):
        compiled = ", compiled" if arguments.compile and name != CHECKOUT else ""
        header += [f"{name}{compiled}, tokens/s", f"ours / {name}"]
    header += ["training from records, tokens/s", "reading alone, tokens/s"] if arguments.records else []
    header += ["sequences/s", "GFLOP/s"] + (["utilisation"] if arguments.peak_flops else [])
    header += ["peak GiB" + ("" if not list_others(arguments) else " (each side)")]
    print("| " + " | ".join(header) + " |", "|---|---|" + "---:|" * (len(header) - 2), sep="\n", flush=True)
    for precision in arguments.precision:
        for backend in arguments.backend:
            print("| " + " | ".join(measure(arguments, backend, precision)) + " |", flush=True)


if __name__ == "__main__":
    main()
