"""Print what pre-training is worth on a task, epoch by epoch over many seeds, as a Markdown table.

    python benchmarks/pretraining_gain.py --config configs/wiki_sst2.yaml --model runs/pretraining/KEY/model

Fine-tunes the model, and the same one from random weights, `--seeds` times, as `kbf finetune` does, and reads the
accuracies of their logs. A model that overfits early is shown at its best epoch too. `±` is the standard error of the
mean over seeds; the sentences measured on add an error of their own, the same for both rows.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from keras_bert_flow.config.loading import load_config
from keras_bert_flow.training.finetuning.finetune import PRETRAINED, RANDOM, finetune


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="YAML whose sections `task` and `finetuning` count")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--model", required=True, help="model directory")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--epochs", type=int, default=4)
    return parser.parse_args()


def read_accuracies(folder: Path, start: str) -> np.ndarray:
    """Return the accuracies of the runs of one start, (seeds, epochs)."""
    logs = sorted((folder / start).glob("seed-*/log.jsonl"))
    lines = [[json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] for log in logs]
    return np.array([[line["dev_accuracy"] for line in log if "dev_accuracy" in line] for log in lines])


def print_row(name: str, values: np.ndarray) -> None:
    means, errors = values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values))
    cells = [f"{100 * mean:.1f} ± {100 * error:.1f}" for mean, error in zip(means, errors, strict=True)]
    print(f"| {name} | " + " | ".join(cells) + " |")


def main() -> None:
    arguments = parse_arguments()
    changes = [f"finetuning.seeds={list(range(1, arguments.seeds + 1))}", f"finetuning.epochs={arguments.epochs}"]
    config = load_config(arguments.config, [*arguments.set, *changes])
    with tempfile.TemporaryDirectory() as folder:
        runs = finetune(config, arguments.model, Path(folder) / "runs", report=lambda line: None)
        pretrained, random = (read_accuracies(runs, start) for start in (PRETRAINED, RANDOM))
    epochs = [f"epoch {epoch}" for epoch in range(1, arguments.epochs + 1)]
    print(f"{arguments.seeds} seeds, accuracy in %, mean ± standard error\n")
    print("| weights | " + " | ".join(epochs) + " |", "|---|" + "---:|" * arguments.epochs, sep="\n")
    print_row("pre-trained", pretrained)
    print_row("random", random)
    print_row("gain", pretrained - random)  # the same seed sees the same order of examples
    best = [values.mean(axis=0).argmax() for values in (pretrained, random)]
    gain = pretrained[:, best[0]] - random[:, best[1]]
    error = gain.std(ddof=1) / np.sqrt(len(gain))
    print(f"\nGain, each at its best epoch: {100 * gain.mean():.1f} ± {100 * error:.1f} points")


if __name__ == "__main__":
    main()
