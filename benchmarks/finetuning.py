"""Fine-tune a model on a task beside transformers, seed by seed, and print scores and seconds as a Markdown table.

    python benchmarks/finetuning.py --config configs/tasks/sst2.yaml --model MODEL --backend torch --seeds 1 2 3 \\
        --set task.train=data/train.tsv --set task.dev=data/dev.tsv --set finetuning.epochs=2

Both read the same examples, and have the same batch, epochs, rates, precision and threads. For each seed the sides take
turns. With `--runs FILE` each run is a line of that file when it is done, and is not made again: what takes hours can
be broken off, or made seed by seed and printed at the end. Seconds are those of the whole command. In those of
`kbf finetune` are compiling, an evaluation after each epoch, checkpoints and the published model; in those of
transformers its training and one evaluation.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from keras_bert_flow.config.loading import load_config

ROOT = Path(__file__).parents[1]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="YAML whose sections `task` and `finetuning` count")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--model", required=True, help="model directory, of Hugging Face's layout")
    parser.add_argument("--backend", nargs="+", default=("jax", "tensorflow", "torch"))
    parser.add_argument("--seeds", nargs="+", type=int, default=(1, 2, 3))
    parser.add_argument("--metrics", nargs="+", help="what to print; left out, the one by which runs are compared")
    parser.add_argument("--threads", type=int, default=1, help="of the processor")
    parser.add_argument("--runs", type=Path, help="file of JSON lines in which runs are kept")
    return parser.parse_args()


def run_child(command: list[str], threads: int, **environment: str) -> tuple[str, float]:
    """Return what a command printed, and the seconds that it took."""
    limits = dict.fromkeys(("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"), str(threads))
    if threads == 1:
        limits["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    started_at = time.perf_counter()
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | limits | environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout, time.perf_counter() - started_at


def finetune_ours(arguments: argparse.Namespace, backend: str, seed: int) -> tuple[dict[str, float], float]:
    """Return the scores after the last epoch, and the seconds."""
    with tempfile.TemporaryDirectory() as folder:
        changes = [*arguments.set, f"finetuning.seeds=[{seed}]", "finetuning.compare_random=false"]
        sets = [part for change in changes for part in ("--set", change)]
        output = Path(folder) / "out"
        command = ["-m", "keras_bert_flow", "finetune", "--task", arguments.config, "--model", arguments.model]
        command = [sys.executable, *command, "--output", str(output), *sets]
        _, seconds = run_child(command, arguments.threads, KERAS_BACKEND=backend)
        last = (output / "pretrained" / f"seed-{seed}" / "log.jsonl").read_text().splitlines()[-1]
        return {name.removeprefix("dev_"): value for name, value in json.loads(last).items()}, seconds


def finetune_theirs(arguments: argparse.Namespace, seed: int) -> tuple[dict[str, float], float]:
    command = ["-m", "benchmarks.peers.finetune_transformers", arguments.config, arguments.model, str(seed)]
    printed, seconds = run_child([sys.executable, *command, *arguments.set], arguments.threads)
    return json.loads(printed.splitlines()[-1]), seconds


def print_rows(name: str, runs: list, theirs: list, metrics: list[str]) -> None:
    scores, seconds = zip(*runs, strict=True)
    ratio = statistics.median(seconds) / statistics.median([second for _, second in theirs])
    for metric in metrics:
        found = [score[metric] for score in scores]
        spread = statistics.stdev(found) if len(found) > 1 else 0.0
        each = ", ".join(f"{score:.4f}" for score in found)
        print(
            f"| {name} | {metric} | {statistics.mean(found):.4f} ± {spread:.4f} | {each} "
            f"| {statistics.median(seconds):,.1f} | {ratio:.2f} |",
            flush=True,
        )


def kept_run(arguments: argparse.Namespace, name: str, finetune: Callable, seed: int) -> tuple[dict[str, float], float]:
    """Return scores and seconds from the file of runs, or from a run that is added to it."""
    settings = {"config": arguments.config, "set": sorted(arguments.set), "threads": arguments.threads}
    run = settings | {"side": name, "seed": seed}
    if arguments.runs and arguments.runs.exists():
        for line in arguments.runs.read_text().splitlines():
            kept = json.loads(line)
            if run.items() <= kept.items():
                return kept["scores"], kept["seconds"]
    scores, seconds = finetune(seed)
    print(f"{name}, seed {seed}: {scores}, {seconds:.1f} s", file=sys.stderr, flush=True)
    if arguments.runs:
        with arguments.runs.open("a") as lines:
            lines.write(json.dumps(run | {"scores": scores, "seconds": seconds}) + "\n")
    return scores, seconds


def main() -> None:
    arguments = parse_arguments()
    sides = {"transformers": partial(finetune_theirs, arguments)}
    sides |= {backend: partial(finetune_ours, arguments, backend) for backend in arguments.backend}
    runs: dict[str, list] = {name: [] for name in sides}
    for seed in arguments.seeds:
        for name, finetune in sides.items():
            runs[name].append(kept_run(arguments, name, finetune, seed))
    metrics = arguments.metrics or [load_config(arguments.config, arguments.set).task.main_metric]
    print("| | metric | mean ± standard deviation | each seed | seconds, median | seconds / transformers |")
    print("|---|---|---:|---|---:|---:|")
    for name in sides:
        print_rows(name, runs[name], runs["transformers"], metrics)


if __name__ == "__main__":
    main()
