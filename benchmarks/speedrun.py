"""Pre-train with recipes by name for the same processor time, and print what each learnt, as a Markdown table.

    python benchmarks/speedrun.py --corpus data/corpus/imdb_reviews.txt.zst --minutes 5
    python benchmarks/speedrun.py --records RECORDS --recipes adamw all transformers --minutes 20 --target 5.0 \\
        --seeds 1 2 --task configs/imdb_sst2.yaml --keep out/speedrun

Without `--records`, the vocabulary and records are built from the text first and their processor time is printed apart:
it is the same for every recipe. Each run is a process of its own with one thread. Its steps are chosen from two short
runs of the same recipe, so that start-up, counts and compilation, training and the last evaluation take the time given;
the learning rate falls to 0 at its own last step, so every recipe is trained to its end. Processor time is that of the
whole process, measured: the column `minutes` shows how well it was met. The recipe `transformers` is that library's own
BertForMaskedLM on the same batches (`benchmarks/peers/pretrain_transformers.py`).

`--target`: the processor minutes and tokens at which the held-out loss is first at most this.
`--task`: each model is then fine-tuned by `kbf finetune` on the task of this configuration, every recipe alike, and the
table has the mean score for each number of labels. This takes time of its own, which is not counted.
`--keep`: a folder in which runs are kept and found again when the command is repeated.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
COUNTS = {"token_embeddings": "co_occurrence", "output_bias": "unigram"}
ALL = {"optimizer": "muon", **COUNTS}
MASKED = {**ALL, "masked_fraction": 0.3}
TRANSFORMERS = "transformers"
# Name → settings of `pretraining`; each says what it adds to plain AdamW.
RECIPES = {
    "defaults": {"masking": "static", "precision": "float32", "learning_rate": 0.0015},  # once the quickstart's
    "adamw": {},
    "bias": {"output_bias": "unigram"},
    "counts": COUNTS,
    "muon": {"optimizer": "muon"},
    "muon and bias": {"optimizer": "muon", "output_bias": "unigram"},
    "all": ALL,
    "all, slow embeddings": {**ALL, "token_embedding_learning_rate": 1e-4},
    "all, batches of 64": {**ALL, "batch_size": 64},
    "all, rate 0.002": {**ALL, "learning_rate": 0.002},
    "all, rate 0.004": {**ALL, "learning_rate": 0.004},
    "all, rate 0.002, batches of 64": {**ALL, "learning_rate": 0.002, "batch_size": 64},
    "all, matrices 0.04": {**ALL, "matrix_learning_rate": 0.04},
    "all, 30 % masked": MASKED,
    "all, trapezoid": {**ALL, "decay": "trapezoid"},
    "all, 30 % masked, trapezoid": {**MASKED, "decay": "trapezoid"},
    "all, 30 % masked, batches of 64": {**MASKED, "batch_size": 64},
    "all, 30 % masked, trapezoid, batches of 64": {**MASKED, "decay": "trapezoid", "batch_size": 64},
    "lamb": {"optimizer": "lamb", "learning_rate": 0.005},
}
SHORT, LONG = 20, 200  # steps of the two short runs


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--corpus", help="text, as of corpus.input")
    source.add_argument("--records", type=Path, help="what `kbf records` made with the objective mlm")
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument("--sequence-length", type=int, default=64)
    parser.add_argument("--recipes", nargs="+", default=["adamw", "all"], choices=[*RECIPES, TRANSFORMERS])
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--num-layers", type=int, help="encoder blocks, in place of those of --size")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--precision", default="mixed_bfloat16")
    parser.add_argument("--backend", default=os.environ.get("KERAS_BACKEND", "torch"))
    parser.add_argument("--minutes", type=float, default=5.0, help="processor time of a run")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--evaluations", type=int, default=10, help="held-out evaluations in a run")
    parser.add_argument("--target", type=float, help="held-out loss, nats")
    parser.add_argument("--task", help="configuration whose sections `task` and `finetuning` count")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of --task")
    parser.add_argument("--keep", type=Path, help="folder for the results of the runs")
    return parser.parse_args()


def run_child(arguments: argparse.Namespace, *command: Any) -> tuple[str, float]:
    """Run a Python module with one thread, and return what it printed and its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", *map(str, command)],
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
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run_kbf(arguments: argparse.Namespace, *command: Any, **settings: Any) -> float:
    """Run a command of `kbf` with settings, and return its processor seconds."""
    options = [part for name, value in settings.items() for part in ("--set", f"{name}={json.dumps(value)}")]
    return run_child(arguments, "keras_bert_flow", *command, *options)[1]


def build_records(arguments: argparse.Namespace, folder: Path) -> Path:
    records = folder / "records"
    if records.exists():
        return records
    corpus, vocabulary = {"corpus.input": [arguments.corpus]}, folder / "vocabulary"
    size = {"vocabulary.size": arguments.vocabulary_size}
    seconds = run_kbf(arguments, "vocab", "--output", vocabulary, **corpus, **size)
    length = arguments.sequence_length
    settings = {
        "sequence_length": length,
        "objective": "mlm",
        "duplication": 1,
        "max_predictions": round(0.15 * length),
    }
    settings = {f"records.{name}": value for name, value in settings.items()}
    seconds += run_kbf(
        arguments, "records", "--vocab", vocabulary / "vocab.txt", "--output", records, **corpus, **settings
    )
    print(f"Vocabulary and records: {seconds / 60:.1f} processor minutes.\n")
    return records


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
        "model.num_layers": arguments.num_layers,
        "model.max_positions": max(128, length),
        "model.dropout_rate": 0.0,
        "model.attention_dropout_rate": 0.0,
        **{f"pretraining.{name}": value for name, value in settings.items()},
    }
    return run_kbf(arguments, "pretrain", "--records", records, "--output", output, **values)


def train_for(minutes: float, train: Callable[[int, Path], float], folder: Path) -> tuple[int, float, float]:
    """Train for about so many processor minutes, and return the steps, the seconds, and those before the first step.

    Args:
        train: trains for a number of steps, into a folder, and returns the processor seconds.
        folder: of the short runs by which the steps are chosen, and of `run`, the one that counts.
    """
    steps, start = choose_steps_for(minutes, train, folder)
    return steps, train(steps, folder / "run"), start


def choose_steps_for(
    minutes: float, train: Callable[[int, Path], float], folder: Path, most: int = LONG
) -> tuple[int, float]:
    """Return how many steps take about so many minutes, and the seconds before the first; arguments of `train_for`.

    Args:
        most: steps of the longer of the two runs.
    """
    short, long = train(SHORT, folder / "short"), train(most, folder / "long")
    step_seconds = (long - short) / (most - SHORT)
    return max(most, int((60 * minutes - short) / step_seconds) + SHORT), max(0.0, short - SHORT * step_seconds)


def measure_ours(arguments: argparse.Namespace, records: Path, recipe: str, seed: int, folder: Path) -> dict[str, Any]:
    """Pre-train with a recipe; return steps, tokens, seconds, loss, accuracy and the losses on the way."""

    def train(steps: int, output: Path) -> float:
        return pretrain(arguments, records, recipe, seed, steps, output)

    steps, seconds, start = train_for(arguments.minutes, train, folder)
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    lines = [json.loads(line) for line in (folder / "run" / "log.jsonl").read_text().splitlines()]
    return {
        "steps": steps,
        "tokens": metrics["tokens"],
        "seconds": seconds,
        "loss": metrics["masked_lm_loss"],
        "accuracy": metrics["masked_lm_accuracy"],
        "path": [
            (line["step"], start + (seconds - start) * line["step"] / steps, line["held_out_masked_lm_loss"])
            for line in lines
            if "held_out_masked_lm_loss" in line
        ],
    }


def measure_theirs(arguments: argparse.Namespace, records: Path, seed: int, folder: Path) -> dict[str, Any]:
    """Pre-train transformers' BERT; return what `measure_ours` does."""
    names = ("minutes", "size", "batch_size", "learning_rate", "precision", "evaluations")
    options = [f"--{name.replace('_', '-')}={getattr(arguments, name)}" for name in names]
    options += [f"--num-layers={arguments.num_layers}"] if arguments.num_layers else []
    command = ["benchmarks.peers.pretrain_transformers", records, folder / "run", *options, f"--seed={seed}"]
    found = json.loads(run_child(arguments, *command)[0].splitlines()[-1])
    return {
        "steps": found["steps"],
        "tokens": found["tokens"],
        "seconds": found["seconds"],
        "loss": found["masked_lm_loss"],
        "accuracy": found["masked_lm_accuracy"],
        "path": [(line["step"], line["seconds"], line["masked_lm_loss"]) for line in found["lines"]],
    }


def finetune(arguments: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Fine-tune a pre-trained model, and return the mean score over the seeds for each number of labels."""
    options = [part for change in arguments.set for part in ("--set", change)]
    output = folder / "finetuned"
    command = ["finetune", "--task", arguments.task, "--model", folder / "run" / "model", "--output", output, *options]
    run_kbf(arguments, *command, **{"finetuning.compare_random": False})
    rows = json.loads((output / "label-counts.json").read_text())["rows"]
    return {
        f"{row['labels']:,} labels": 100 * statistics.fmean(run["score"] for run in row["runs"]["pretrained"])
        for row in rows
    }


def measure(arguments: argparse.Namespace, records: Path, recipe: str, seed: int, folder: Path) -> dict[str, Any]:
    """Return the results of a run, kept in its folder."""
    place = folder / "result.json"
    if not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if recipe == TRANSFORMERS:
            found = measure_theirs(arguments, records, seed, folder)
        else:
            found = measure_ours(arguments, records, recipe, seed, folder)
        place.write_text(json.dumps(found))
    found = json.loads(place.read_text())
    if arguments.task and "scores" not in found:
        found["scores"] = finetune(arguments, folder)
        place.write_text(json.dumps(found))
    return found


def describe(arguments: argparse.Namespace, found: dict[str, Any]) -> dict[str, float]:
    """Return the columns of a run."""
    columns = {
        "minutes": found["seconds"] / 60,
        "steps": found["steps"],
        "million tokens": found["tokens"] / 1e6,
        "held-out loss": found["loss"],
        "accuracy %": 100 * found["accuracy"],
    }
    if arguments.target is not None:
        never = (found["steps"], float("inf"), None)
        step, seconds, _ = next((point for point in found["path"] if point[2] <= arguments.target), never)
        columns[f"minutes to {arguments.target:g}"] = seconds / 60
        columns[f"million tokens to {arguments.target:g}"] = (
            found["tokens"] / 1e6 * step / found["steps"] if seconds < float("inf") else float("inf")
        )
    return columns | found.get("scores", {})


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        records = arguments.records or build_records(arguments, folder)
        for number, recipe in enumerate(arguments.recipes):
            rows = []
            for seed in arguments.seeds:
                place = folder / recipe.replace(" ", "-").replace(",", "") / f"seed-{seed}"
                rows.append(describe(arguments, measure(arguments, records, recipe, seed, place)))
            if not number:
                print("| recipe | " + " | ".join(rows[0]) + " |", "|---|" + "---:|" * len(rows[0]), sep="\n")
            print_row(recipe, rows)


def print_row(recipe: str, rows: list[dict[str, float]]) -> None:
    """Print means over the seeds; of losses and scores with the standard error, where there are several."""
    cells = []
    for name in rows[0]:
        values = [row[name] for row in rows]
        spec = {"steps": ",.0f", "held-out loss": ".3f"}.get(name, ".1f")
        cell = format(statistics.fmean(values), spec)
        if name in ("held-out loss", "accuracy %") or name.endswith("labels"):
            cell += f" ± {statistics.stdev(values) / len(values) ** 0.5:{spec}}" if len(values) > 1 else ""
        cells.append(cell)
    print(f"| {recipe} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
