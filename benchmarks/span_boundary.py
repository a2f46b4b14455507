"""Pre-train with and without the span boundary objective for the same time, fine-tune on SQuAD, and print a table.

    python -m benchmarks.span_boundary --keep out/span_boundary
    python -m benchmarks.span_boundary --keep out/span_boundary --minutes 40 --seeds 1 2 3 --arms token-masks mlm_sbo

One vocabulary and one shape of BERT are pre-trained on Wikipedia in several ways, the arms: masked LM on single tokens;
masked LM on spans; and SpanBERT's objective `mlm_sbo`, the same on merged spans with the span boundary loss. The second
tells the masks from the objective. Recipe, batch size and sequence length are the same, and masks are drawn anew in
every epoch. `--minutes` is processor time of the whole process that pre-trains, so the second head pays for itself; the
steps of an arm are chosen by two short runs, as in `benchmarks/speedrun.py`, and the learning rate falls to 0 at the
last one. The time of the records is not counted.

Rows are as each objective makes them: those of `mlm` are full and go on over sentences and documents, those of
`mlm_sbo` hold whole sentences of one document and have padding, which is in the table. `--arms … unweighted-sbo` is
`mlm_sbo` with weight 0: the rows and masks of the last arm without its loss, although the second head is computed.
Held-out losses are those of each arm's own rows and masks, and masks of spans are harder to fill than single tokens.

Then each model is fine-tuned with each seed, by the same schedule, on SQuAD 1.1, and so is the shape from random
weights. Rows are as long as in pre-training; longer texts are split into windows that overlap by half. Scores are those
of the last epoch, on questions taken evenly from the articles of the dev set: nothing is chosen on them.

The data are in a folder, by default that of KBF_TEST_DATA: corpus/wiki_en_train.txt, squad/train-small.json and
squad/dev-v1.1.json. `--keep` has everything that is made, and results.json. The command may be killed and repeated:
what has ended is found again, and the run that was killed goes on from its checkpoint.
"""

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.families import build_records
from benchmarks.small_students import Shape, as_settings, count_minutes, train_once
from benchmarks.speedrun import ALL, LONG, ROOT, run_kbf
from keras_bert_flow.results.artifacts import write_atomically
from keras_bert_flow.results.manifest import read_manifest


class Arm(NamedTuple):
    """A way to pre-train: its title, objective, unit of masks (None: the objective's own) and boundary weight."""

    title: str
    objective: str
    mask_unit: str | None = None
    boundary_weight: float = 1.0


BEFORE, AFTER, RANDOM = "token-masks", "mlm_sbo", "random"
ARMS = {
    BEFORE: Arm("`mlm`, single tokens", "mlm"),
    "span-masks": Arm("`mlm`, spans", "mlm", "span"),
    AFTER: Arm("`mlm_sbo`", "mlm_sbo"),
    "unweighted-sbo": Arm("`mlm_sbo`, weight 0", "mlm_sbo", boundary_weight=0.0),
}
HEADER = ("pre-training", "padding %", "steps", "minutes", "held-out masked-LM loss", "exact match %", "F1 %")
# What may differ between two calls with the same `--keep`.
FREE = ("arms", "keep", "data", "corpus")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, required=True, help="folder for what is made")
    data = os.environ.get("KBF_TEST_DATA")
    parser.add_argument("--data", type=Path, default=data, help="folder of corpus/ and squad/")
    parser.add_argument("--arms", nargs="+", default=[*ARMS][:3], choices=ARMS)
    parser.add_argument("--minutes", type=float, default=20.0, help="processor time of a pre-training")
    parser.add_argument("--long", type=int, default=LONG, help="steps of the longer run by which steps are chosen")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--vocabulary-size", type=int, default=8192)
    parser.add_argument("--sequence-length", type=int, default=128, help="of pre-training and fine-tuning")
    parser.add_argument("--batch-size", type=int, default=32, help="of pre-training and fine-tuning")
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--examples", type=int, help="training questions, drawn at random; default: all")
    parser.add_argument("--dev-questions", type=int, default=2500)
    parser.add_argument("--epochs", type=int, default=2, help="of fine-tuning")
    parser.add_argument("--tuning-rate", type=float, default=2e-4, help="learning rate of fine-tuning")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2], help="of fine-tuning")
    parser.add_argument("--backend", default=os.environ.get("KERAS_BACKEND", "torch"))
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("the data must be somewhere: give --data, or set KBF_TEST_DATA")
    arguments.keep, arguments.data = arguments.keep.resolve(), arguments.data.resolve()
    arguments.corpus = str(arguments.data / "corpus" / "wiki_en_train.txt")
    return arguments


def main() -> None:
    arguments = parse_arguments()
    arguments.keep.mkdir(parents=True, exist_ok=True)
    settings = check_settings(arguments)
    dev = write_dev(arguments)
    print("| " + " | ".join(HEADER) + " |", "|---|" + "---:|" * (len(HEADER) - 1), sep="\n", flush=True)
    place = arguments.keep / "results.json"
    found: dict[str, dict[str, Any]] = json.loads(place.read_text())["arms"] if place.exists() else {}
    for name in sorted(arguments.arms, key=[*ARMS].index):
        found[name] = pretrain(arguments, name)
        finetune(arguments, name, dev)
        found[name] |= read_scores(arguments, name, "pretrained")
        print_row(ARMS[name].title, found[name])
        if name == BEFORE:
            found[RANDOM] = read_scores(arguments, BEFORE, RANDOM)
            print_row("none: random weights", found[RANDOM])
        write_atomically(place, json.dumps({"settings": settings, "arms": found}, indent=1).encode())
    seeds = ", ".join(map(str, arguments.seeds))
    print(
        f"\nScores on {arguments.dev_questions:,} questions: mean ± standard error over seeds {seeds} of fine-tuning."
    )
    print("Each arm is pre-trained once; minutes are those of the processor.")


def check_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of the results, and refuse others than those with which the folder was begun."""
    place = arguments.keep / "settings.json"
    settings = {name: value for name, value in vars(arguments).items() if name not in FREE}
    if not place.exists():
        write_atomically(place, json.dumps(settings, indent=1).encode())
    earlier = json.loads(place.read_text())
    pairs = [(name, earlier.get(name), value) for name, value in settings.items()]
    changed = [f"{name}={value}, before {before}" for name, before, value in pairs if before != value]
    if changed:
        changes = "; ".join(changed)
        raise SystemExit(
            f"--keep must have been begun with the same settings. Received: {changes}. Choose another folder."
        )
    return settings


# Pre-training for the same processor time.


def pretrain(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Pre-train an arm for as many steps as take its time, unless it is done, and return what there is to say of it."""
    arm, folder = ARMS[name], arguments.keep / name
    records = build_records(arguments, arm.objective, arm.mask_unit)
    model = Shape("bert", arguments.layers, arguments.width).as_settings(arguments.heads, arguments.sequence_length)

    def run(steps: int, output: Path) -> float:
        """Train, and return the processor seconds of all processes that did."""
        settings = ALL | {
            "masking": "dynamic",
            "span_boundary_weight": arm.boundary_weight,
            "batch_size": arguments.batch_size,
            "learning_rate": arguments.learning_rate,
            "total_steps": steps,
            "warmup_steps": steps // 50,
            "precision": "auto",
            "tensorboard": False,
            "log_every_steps": max(1, steps // 20),
            "evaluate_every_steps": steps,
            "checkpoint_every_steps": max(1, min(steps // 5, 500)),
        }
        values = as_settings("model", model) | as_settings("pretraining", settings)
        values |= {"records.sequence_length": arguments.sequence_length}
        run_kbf(arguments, "pretrain", "--records", records, "--output", output, **values)
        return 60 * count_minutes(output)

    train_once(arguments.minutes, run, folder, arguments.long)
    counters = read_manifest(records).counters
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    return {
        "padding": counters.get("padding_positions", 0) / counters["positions"],
        "minutes": count_minutes(folder / "run"),
        "metrics": metrics,
    }


# Fine-tuning on SQuAD.


def write_dev(arguments: argparse.Namespace) -> Path:
    """Write the dev questions that count, and return their file.

    They are the first of each article, equally many of all articles that have as many.
    """
    place = arguments.keep / "dev.json"
    if place.exists():
        return place
    articles = json.loads((arguments.data / "squad" / "dev-v1.1.json").read_text("utf-8"))
    ids = [
        [question["id"] for paragraph in article["paragraphs"] for question in paragraph["qas"]]
        for article in articles["data"]
    ]
    ranked = sorted((rank, article) for article, questions in enumerate(ids) for rank in range(len(questions)))
    chosen = {ids[article][rank] for rank, article in ranked[: arguments.dev_questions]}
    if len(chosen) < arguments.dev_questions:
        raise SystemExit(
            f"--dev-questions must be at most {len(chosen)}. Received: {arguments.dev_questions}. Lower it."
        )
    for article in articles["data"]:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = [question for question in paragraph["qas"] if question["id"] in chosen]
        article["paragraphs"] = [paragraph for paragraph in article["paragraphs"] if paragraph["qas"]]
    articles["data"] = [article for article in articles["data"] if article["paragraphs"]]
    write_atomically(place, json.dumps(articles).encode())
    return place


def finetune(arguments: argparse.Namespace, name: str, dev: Path) -> None:
    """Fine-tune an arm with each seed, unless it is done, and with the first arm also its shape from random weights."""
    output = arguments.keep / name / "finetuned"
    if output.exists():
        return
    task = {
        "train": str(arguments.data / "squad" / "train-small.json"),
        "dev": str(dev),
        "stride": arguments.sequence_length // 2,
    }
    settings = {
        "seeds": arguments.seeds,
        "max_train_examples": arguments.examples,
        "train_examples": "random",
        "sequence_length": arguments.sequence_length,
        "batch_size": arguments.batch_size,
        "learning_rate": arguments.tuning_rate,
        "epochs": arguments.epochs,
        "precision": "auto",
        "compare_random": name == BEFORE,
        "random_max_epochs": arguments.epochs,
        "random_patience_epochs": arguments.epochs,  # never stopped before
        "compare_initial": False,
    }
    values = as_settings("task", task) | as_settings("finetuning", settings)
    config, model = ROOT / "configs" / "tasks" / "squad.yaml", arguments.keep / name / "run" / "model"
    run_kbf(arguments, "finetune", "--config", config, "--model", model, "--output", output, **values)


def read_scores(arguments: argparse.Namespace, name: str, start: str) -> dict[str, list[float]]:
    """Return exact match and F1 after the last epoch of each seed, also where the best epoch is published."""
    scores: dict[str, list[float]] = {"exact": [], "f1": []}
    for seed in arguments.seeds:
        log = arguments.keep / name / "finetuned" / start / f"seed-{seed}" / "log.jsonl"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        last = [line for line in lines if "dev_f1" in line][-1]
        for measure, values in scores.items():
            values.append(last[f"dev_{measure}"])
    return scores


def print_row(title: str, found: dict[str, Any]) -> None:
    """Print what there is to say of an arm, or of random weights."""
    cells = ["-"] * 4
    if "metrics" in found:
        metrics = found["metrics"]
        cells = [f"{100 * found['padding']:.1f}", f"{metrics['steps']:,}", f"{found['minutes']:.1f}"]
        cells += [f"{metrics['masked_lm_loss']:.3f}"]
    for measure in ("exact", "f1"):
        values = [100 * score for score in found[measure]]
        spread = f" ± {statistics.stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
        cells.append(f"{statistics.fmean(values):.1f}{spread}")
    print(f"| {title} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
