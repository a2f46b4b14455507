"""Go on from a published model on a corpus, and print what that changes, as Markdown tables.

    python -m benchmarks.continued_pretraining --config configs/minilm_imdb.yaml --keep out/continued

The first table has the held-out masked-LM loss before, on the way and after, from the published weights and, for the
same steps, from random ones. A head that the model does not bring is new in both, and knows nothing before. The second
has the scores of `kbf finetune` on the task, from the published model and from the one that went on, each number of
labels with the mean and the standard error over the seeds.

`--keep`: a folder in which all is kept and found again when the command is repeated.
"""

import argparse
import json
import os
import statistics
from pathlib import Path
from typing import Any

from benchmarks.speedrun import run_kbf
from keras_bert_flow.checks.run import resolve_initial_model
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.pipeline import PipelineConfig

PUBLISHED, RANDOM = "published", "random"
HELD_OUT_LOSS = "held_out_masked_lm_loss"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="configuration with an initial_model")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--keep", type=Path, required=True, help="folder for what is made")
    parser.add_argument("--labels", nargs="+", default=["1000", "all"], help="numbers of labels")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2], help="of fine-tuning")
    parser.add_argument("--backend", default=os.environ.get("KERAS_BACKEND", "torch"))
    return parser.parse_args()


def run(arguments: argparse.Namespace, command: str, output: Path, *options: Any, **settings: Any) -> Path:
    """Run a command of `kbf` on the configuration unless its output is there, and return the output."""
    if not output.exists():
        file = "--task" if command == "finetune" else "--config"
        changes = [part for change in arguments.set for part in ("--set", change)]
        run_kbf(arguments, command, "--output", output, file, arguments.config, *changes, *options, **settings)
    return output


def pretrain(
    arguments: argparse.Namespace, config: PipelineConfig, records: Path, start: str
) -> list[tuple[int, float]]:
    """Pre-train from the published or from random weights, and return the held-out loss by the step, from step 0 on."""
    settings = {f"model.{name}": value for name, value in config.model.model_dump().items()}
    if start == RANDOM:
        settings["initial_model"] = None
    # A step too small to change a bit of the weights in float32
    untrained = {"total_steps": 1, "warmup_steps": 0, "learning_rate": 1e-12, "evaluate_every_steps": 1}
    first = {f"pretraining.{name}": value for name, value in untrained.items()}
    options = ("--records", records)
    before = run(arguments, "pretrain", arguments.keep / f"{start}-before", *options, **settings, **first)
    after = run(arguments, "pretrain", arguments.keep / start, *options, **settings)
    lines = map(json.loads, (after / "log.jsonl").read_text().splitlines())
    losses = {line["step"]: line[HELD_OUT_LOSS] for line in lines if HELD_OUT_LOSS in line}
    return {0: json.loads((before / "metrics.json").read_text())[HELD_OUT_LOSS.removeprefix("held_out_")]} | losses


def finetune(arguments: argparse.Namespace, name: str, model: str | Path, labels: str) -> str:
    """Fine-tune a model and return its score, %."""
    changes = {
        "finetuning.compare_random": False,
        "finetuning.label_counts": None,
        "finetuning.seeds": arguments.seeds,
        "finetuning.max_train_examples": None if labels == "all" else int(labels),
    }
    output = arguments.keep / f"finetuned-{name}-{labels}"
    runs = sorted(run(arguments, "finetune", output, "--model", model, **changes).glob("pretrained/seed-*/run.json"))
    values = [100 * json.loads(file.read_text())["score"] for file in runs]
    error = f" ± {statistics.stdev(values) / len(values) ** 0.5:.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{error}"


def main() -> None:
    arguments = parse_arguments()
    arguments.keep = arguments.keep.absolute()
    arguments.keep.mkdir(parents=True, exist_ok=True)
    config = resolve_initial_model(load_config(arguments.config, arguments.set))
    records = run(arguments, "records", arguments.keep / "records", "--vocab", config.vocabulary.file)
    losses = {start: pretrain(arguments, config, records, start) for start in (PUBLISHED, RANDOM)}
    steps = list(losses[PUBLISHED])
    print("Held-out masked-LM loss, nats:\n")
    print("| weights | " + " | ".join(f"step {step}" for step in steps) + " |")
    print("|---|" + "---:|" * len(steps))
    for start, path in losses.items():
        print(f"| {start} | " + " | ".join(f"{loss:.3f}" for loss in path.values()) + " |")
    print(f"\n{config.task.name}, {len(arguments.seeds)} seeds, %:\n")
    print("| model | " + " | ".join(f"{count} labels" for count in arguments.labels) + " |")
    print("|---|" + "---:|" * len(arguments.labels))
    models = {"before": config.initial_model, "after": arguments.keep / PUBLISHED / "model"}
    for name, model in models.items():
        cells = [finetune(arguments, name, model, count) for count in arguments.labels]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
