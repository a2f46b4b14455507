"""Pre-train each family of encoders for the same processor time, fine-tune it, and print a Markdown table.

    python -m benchmarks.families --corpus data/corpus/imdb_reviews.txt.zst --task configs/imdb_sst2.yaml \\
        --minutes 60 --keep out/families

Each family has its own objective: BERT next sentences, RoBERTa and the student masked tokens alone, ALBERT sentence
order, ELECTRA replaced tokens. The student is a DistilBERT of half the layers, distilled from the RoBERTa of the table;
the time of its teacher is not in its own. All have one vocabulary, one shape and one recipe (docs/recipes.md), and each
run is a process of its own with one thread, trained to the end of its schedule. How many steps that has is chosen
first, for all of them one after another, by two short runs of each, as in `benchmarks/speedrun.py`: what follows may
then take days and other machines. Held-out losses compare where the instances are the same: RoBERTa and the student;
those of ELECTRA are its generator's. `other task` is what else each learns, with what chance gives; for replaced tokens
that is the loss of one who knows only how many there are.

Then each is fine-tuned by `kbf finetune` on the task, from the mean of its tokens, and asked for the dev table, whose
texts are in a column by number, with one thread (`texts a second` of processor time, the median of three passes,
without loading).

`--keep`: a folder in which all is kept and found again when the command is repeated.
"""

import argparse
import json
import math
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.speedrun import ALL, choose_steps_for, run_child, run_kbf
from keras_bert_flow.models.sizes import get_size

TEACHER = "RoBERTa"
# Name → family, objective, settings of `pretraining` of its own
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "BERT": ("bert", "mlm_nsp", {}),
    TEACHER: ("roberta", "mlm", {}),
    "ALBERT": ("albert", "mlm_sop", {}),
    "ELECTRA": ("electra", "rtd", {"generator_size": 1, "replaced_token_weight": 20}),
    "DistilBERT": ("distilbert", "mlm", {}),
}
NARROW = ("ALBERT",)  # embeddings of half the width of the blocks; ELECTRA's generator does not learn with them
SENTENCE_TASKS = ("next_sentence", "sentence_order")
PASSES = 3


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", required=True, help="text, as of corpus.input")
    parser.add_argument("--task", help="configuration whose sections `task` and `finetuning` count")
    parser.add_argument("--keep", type=Path, required=True, help="folder for what is made")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--minutes", type=float, default=60.0, help="processor time of a pre-training")
    parser.add_argument("--size", default="mini")
    parser.add_argument("--num-layers", type=int, default=4)
    parser.add_argument("--sequence-length", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--vocabulary-size", type=int, default=8000)
    parser.add_argument("--labels", nargs="+", default=["1000", "all"], help="numbers of labels")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3], help="of fine-tuning")
    parser.add_argument("--backend", default=os.environ.get("KERAS_BACKEND", "torch"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of --task")
    parser.add_argument("--time", type=Path, help=argparse.SUPPRESS)  # a fine-tuned model, in a process of its own
    return parser.parse_args()


def build_records(arguments: argparse.Namespace, objective: str, mask_unit: str | None = None) -> Path:
    """Build the vocabulary once, and the records of an objective, with masks of its own unit or another one."""
    vocabulary = arguments.keep / "vocabulary"
    records = arguments.keep / "-".join(filter(None, ("records", objective, mask_unit)))
    corpus = {"corpus.input": [arguments.corpus]}
    if not vocabulary.exists():
        run_kbf(arguments, "vocab", "--output", vocabulary, **corpus, **{"vocabulary.size": arguments.vocabulary_size})
    if not records.exists():
        length = arguments.sequence_length
        settings = {
            "records.objective": objective,
            "records.sequence_length": length,
            "records.max_predictions": round(0.15 * length),
            "records.duplication": 1,
        }
        settings |= {"records.mask_unit": mask_unit} if mask_unit else {}
        file = vocabulary / "vocab.txt"
        run_kbf(arguments, "records", "--vocab", file, "--output", records, **corpus, **settings)
    return records


def pretrain(arguments: argparse.Namespace, name: str, steps: int, output: Path, teacher: Path) -> float:
    """Pre-train a model for some steps, or distil it from a teacher, and return the processor seconds."""
    family, objective, own = MODELS[name]
    records = build_records(arguments, objective)
    every = max(1, steps // 5)
    shape = {
        "family": family,
        "size": arguments.size,
        "num_layers": arguments.num_layers,
        "max_positions": max(128, arguments.sequence_length),
        "dropout_rate": 0.0,
        "attention_dropout_rate": 0.0,
        "options": {"embedding_dim": get_size(arguments.size)["hidden_dim"] // 2} if name in NARROW else {},
    }
    recipe = {
        "batch_size": arguments.batch_size,
        "learning_rate": arguments.learning_rate,
        "total_steps": steps,
        "warmup_steps": steps // 50,
    }
    settings = (
        ALL
        | recipe
        | own
        | {
            "masking": "dynamic",
            "precision": "auto",
            "tensorboard": False,
            "log_every_steps": every,
            "evaluate_every_steps": every,
            "checkpoint_every_steps": every,
        }
    )
    values = {f"pretraining.{setting}": value for setting, value in settings.items()}
    values |= {"records.sequence_length": arguments.sequence_length}
    if name != "DistilBERT":
        values |= {f"model.{field}": value for field, value in shape.items()}
        return run_kbf(arguments, "pretrain", "--records", records, "--output", output, **values)
    student = shape | {"num_layers": max(1, arguments.num_layers // 2)}
    values |= {"distillation": {"student": student} | recipe, "model.max_positions": shape["max_positions"]}
    return run_kbf(arguments, "distill", "--records", records, "--teacher", teacher, "--output", output, **values)


def finetune(arguments: argparse.Namespace, folder: Path) -> dict[str, list[float]]:
    """Fine-tune a model on each number of labels, and return the scores of its seeds."""
    scores = {}
    for labels in arguments.labels:
        output = folder / f"finetuned-{labels}"
        if not output.exists():
            changes = {
                "finetuning.compare_random": False,
                "finetuning.label_counts": None,
                "finetuning.label_words": None,
                "finetuning.pooling": "mean",
                "finetuning.seeds": arguments.seeds,
                "finetuning.max_train_examples": None if labels == "all" else int(labels),
            }
            options = [part for change in arguments.set for part in ("--set", change)]
            command = ["finetune", "--task", arguments.task, "--model", folder / "run" / "model", "--output", output]
            run_kbf(arguments, *command, *options, **changes)
        runs = sorted(output.glob("pretrained/seed-*/run.json"))
        scores[labels] = [100 * json.loads(run.read_text())["score"] for run in runs]
    return scores


def choose_steps(arguments: argparse.Namespace) -> dict[str, int]:
    """Return how many steps each model gets, from two short runs of each one after another, kept as well."""
    place = arguments.keep / "steps.json"
    if place.exists():
        return json.loads(place.read_text())
    steps = {}
    with tempfile.TemporaryDirectory(dir=arguments.keep) as folder:
        for name in MODELS:

            def train(steps: int, output: Path, name: str = name) -> float:
                return pretrain(arguments, name, steps, output, Path(folder) / TEACHER / "long" / "model")

            steps[name], _ = choose_steps_for(arguments.minutes, train, Path(folder) / name)
    place.write_text(json.dumps(steps))
    return steps


def measure(arguments: argparse.Namespace, name: str, steps: int) -> dict[str, Any]:
    """Return what there is to say of a model, kept in its folder."""
    folder = arguments.keep / name
    place = folder / "result.json"
    if not place.exists():
        folder.mkdir(parents=True, exist_ok=True)
        seconds = pretrain(arguments, name, steps, folder / "run", arguments.keep / TEACHER / "run" / "model")
        metrics = json.loads((folder / "run" / "metrics.json").read_text())
        place.write_text(json.dumps({"steps": steps, "seconds": seconds, "metrics": metrics}))
    found = json.loads(place.read_text())
    if arguments.task and "scores" not in found:
        found["scores"] = finetune(arguments, folder)
        tuned = next((folder / f"finetuned-{arguments.labels[-1]}").glob("pretrained/seed-*/model"))
        command = ["benchmarks.families", "--time", tuned, "--corpus", "-", "--keep", arguments.keep]
        command += ["--task", arguments.task, *(part for change in arguments.set for part in ("--set", change))]
        found["speed"] = float(run_child(arguments, *command)[0].splitlines()[-1])
        place.write_text(json.dumps(found))
    return found


def time_predictions(arguments: argparse.Namespace) -> None:
    """Print how many texts of the dev table a model predicts in a second."""
    import keras_bert_flow as kbf

    task = kbf.load_config(arguments.task, arguments.set).task
    with open(task.dev, encoding="utf-8") as file:
        texts = [line.rstrip("\n").split("\t")[int(task.text)] for line in file]
    model = kbf.load(arguments.time)
    model.predict(texts)
    speeds = []
    for _ in range(PASSES):
        started = time.process_time()
        model.predict(texts)
        speeds.append(len(texts) / (time.process_time() - started))
    print(statistics.median(speeds))


def describe_other_task(metrics: dict[str, float]) -> str:
    """Write what else than masked tokens a model has learnt, with what chance gives."""
    for task in SENTENCE_TASKS:
        if f"{task}_accuracy" in metrics:
            return f"{task.replace('_', ' ')} {100 * metrics[f'{task}_accuracy']:.1f} % (50.0)"
    if "replaced_token_loss" not in metrics:
        return "-"
    chance = metrics["replaced_token_chance"]
    entropy = -chance * math.log(chance) - (1 - chance) * math.log(1 - chance)
    return f"replaced tokens {metrics['replaced_token_loss']:.3f} nats ({entropy:.3f})"


def describe(found: dict[str, Any], labels: list[str]) -> list[str]:
    metrics = found["metrics"]
    cells = [
        f"{metrics['parameters'] / 1e6:.2f}",
        f"{found['steps']:,}",
        f"{metrics['tokens'] / 1e6:.1f}",
        f"{metrics['masked_lm_loss']:.3f}",
        f"{100 * metrics['masked_lm_accuracy']:.1f} ({100 * metrics['unigram_accuracy']:.1f})",
        describe_other_task(metrics),
    ]
    for count in labels:
        values = found.get("scores", {}).get(count)
        spread = f" ± {statistics.stdev(values) / len(values) ** 0.5:.1f}" if values and len(values) > 1 else ""
        cells.append(f"{statistics.fmean(values):.1f}{spread}" if values else "-")
    return [*cells, f"{found['speed']:,.0f}" if "speed" in found else "-"]


def main() -> None:
    arguments = parse_arguments()
    if arguments.time:
        time_predictions(arguments)
        return
    header = ["family", "million weights", "steps", "million tokens", "masked-LM loss", "accuracy (unigram) %"]
    header += ["other task (chance)"]
    header += [f"{count} labels, %" for count in arguments.labels] + ["texts a second"]
    print("| " + " | ".join(header) + " |")
    print("|---|" + "---:|" * (len(header) - 1))
    arguments.keep.mkdir(parents=True, exist_ok=True)
    steps = choose_steps(arguments)
    for name in arguments.models:
        found = measure(arguments, name, steps[name])
        print(f"| {name} | " + " | ".join(describe(found, arguments.labels)) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
