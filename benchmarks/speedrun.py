"""Pre-train with recipes by name for the same processor time, and print what each learnt, as a Markdown table.

    python benchmarks/speedrun.py --corpus data/corpus/imdb_reviews.txt.zst --minutes 5
    python benchmarks/speedrun.py --records RECORDS --recipes adamw all --minutes 20 --target 5.0 --seeds 1 2

Without `--records`, the vocabulary and records are built from the text first and their processor time is printed apart:
it is the same for every recipe. Each run is a process of its own with one thread. Its steps are chosen from two short
runs of the same recipe, so that start-up, counts and compilation, training and the last evaluation take the time given;
the learning rate falls to 0 at its own last step, so every recipe is trained to its end. Processor time is that of the
whole process, measured: the column `minutes` shows how well it was met.

`--target`: the processor minutes at which the held-out loss is first at most this.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNTS = {"token_embeddings": "co_occurrence", "output_bias": "unigram"}
# Name → settings of `pretraining`; each says what it adds to plain AdamW.
RECIPES = {
    "adamw": {},
    "bias": {"output_bias": "unigram"},
    "counts": COUNTS,
    "muon": {"optimizer": "muon"},
    "muon and bias": {"optimizer": "muon", "output_bias": "unigram"},
    "all": {"optimizer": "muon", **COUNTS},
    "all, batches of 64": {"optimizer": "muon", **COUNTS, "batch_size": 64},
    "lamb": {"optimizer": "lamb", "learning_rate": 0.005},
}
SHORT, LONG = 20, 100  # steps of the two short runs


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--corpus", help="text, as of corpus.input")
    source.add_argument("--records", type=Path, help="what `kbf records` made with the objective mlm")
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument("--sequence-length", type=int, default=64)
    parser.add_argument("--recipes", nargs="+", default=["adamw", "counts", "muon", "all"], choices=RECIPES)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--precision", default="mixed_bfloat16")
    parser.add_argument("--backend", default=os.environ.get("KERAS_BACKEND", "torch"))
    parser.add_argument("--minutes", type=float, default=5.0, help="processor time of a run")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--evaluations", type=int, default=10, help="held-out evaluations in a run")
    parser.add_argument("--target", type=float, help="held-out loss, nats")
    parser.add_argument("--keep", type=Path, help="folder for the results of the runs")
    return parser.parse_args()


def run_kbf(arguments: argparse.Namespace, *command: str) -> float:
    """Run a command with one thread and return its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "keras_bert_flow", *map(str, command)],
        cwd=ROOT,
        env=os.environ
        | {"KERAS_BACKEND": arguments.backend, "OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
        | {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def build_records(arguments: argparse.Namespace, folder: Path) -> Path:
    corpus = ("--set", f"corpus.input={arguments.corpus}")
    seconds = run_kbf(
        arguments, "vocab", *corpus, "--set", f"vocabulary.size={arguments.vocabulary_size}", "--output", folder / "v"
    )
    settings = (f"sequence_length={arguments.sequence_length}", "objective=mlm", "duplication=1")
    masks = f"max_predictions={round(0.15 * arguments.sequence_length)}"
    options = [part for name in (*settings, masks) for part in ("--set", f"records.{name}")]
    seconds += run_kbf(
        arguments, "records", *corpus, *options, "--vocab", folder / "v" / "vocab.txt", "--output", folder / "records"
    )
    print(f"Vocabulary and records: {seconds / 60:.1f} processor minutes.\n")
    return folder / "records"


def pretrain(arguments: argparse.Namespace, records: Path, recipe: str, seed: int, steps: int, output: Path) -> float:
    """Pre-train for some steps and return the processor seconds."""
    evaluations = max(1, steps // arguments.evaluations)
    length = json.loads((records / "manifest.json").read_text())["config"]["sequence_length"]
    settings = {
        "batch_size": arguments.batch_size,
        "learning_rate": arguments.learning_rate,
        "precision": arguments.precision,
        "masking": "dynamic",
        "tensorboard": False,
        "total_steps": steps,
        "warmup_steps": steps // 50,
        "log_every_steps": evaluations,
        "evaluate_every_steps": evaluations,
        "checkpoint_every_steps": steps,
        **RECIPES[recipe],
    }
    values = {
        "seed": seed,
        "records.sequence_length": length,
        "model.size": arguments.size,
        "model.max_positions": max(128, length),
        "model.dropout_rate": 0.0,
        "model.attention_dropout_rate": 0.0,
        **{f"pretraining.{name}": value for name, value in settings.items()},
    }
    options = [part for name, value in values.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    return run_kbf(arguments, "pretrain", "--records", records, "--output", output, *options)


def measure(arguments: argparse.Namespace, records: Path, recipe: str, seed: int, folder: Path) -> dict[str, float]:
    short = pretrain(arguments, records, recipe, seed, SHORT, folder / "short")
    long = pretrain(arguments, records, recipe, seed, LONG, folder / "long")
    step_seconds = (long - short) / (LONG - SHORT)
    steps = max(LONG, int((60 * arguments.minutes - short) / step_seconds) + SHORT)
    seconds = pretrain(arguments, records, recipe, seed, steps, folder / "run")
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    found = {
        "steps": steps,
        "tokens": metrics["tokens"] / 1e6,
        "minutes": seconds / 60,
        "loss": metrics["masked_lm_loss"],
        "accuracy": 100 * metrics["masked_lm_accuracy"],
    }
    if arguments.target is not None:
        lines = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
        reached = [line["step"] for line in lines if line.get("held_out_masked_lm_loss", 1e9) <= arguments.target]
        start = seconds - steps * step_seconds
        found["target"] = (start + reached[0] * step_seconds) / 60 if reached else float("inf")
    return found


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        records = arguments.records or build_records(arguments, folder)
        target = "" if arguments.target is None else f" minutes to {arguments.target:g} |"
        print(f"| recipe | minutes | steps | million tokens | held-out loss | accuracy % |{target}")
        print("|---|" + "---:|" * (5 + bool(target)), flush=True)
        for recipe in arguments.recipes:
            rows = []
            for seed in arguments.seeds:
                place = folder / recipe.replace(" ", "-").replace(",", "") / f"seed-{seed}"
                rows.append(measure(arguments, records, recipe, seed, place))
            print_row(recipe, rows)


def print_row(recipe: str, rows: list[dict[str, float]]) -> None:
    """Print means over the seeds; of loss and accuracy with the standard error, where there are several."""
    formats = {"minutes": ".1f", "steps": ",.0f", "tokens": ".1f", "loss": ".3f", "accuracy": ".1f", "target": ".1f"}
    cells = []
    for name, spec in formats.items():
        values = [row[name] for row in rows if name in row]
        if not values:
            continue
        cell = format(statistics.fmean(values), spec)
        if name in ("loss", "accuracy") and len(values) > 1:
            cell += f" ± {statistics.stdev(values) / len(values) ** 0.5:{spec}}"
        cells.append(cell)
    print(f"| {recipe} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
