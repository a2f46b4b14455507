"""Fine-tune a model whose new head starts smaller or larger, without dropout, and print the scores as a table.

    python -m benchmarks.head_size --config configs/tasks/ner_dutch.yaml --model MODEL --backend torch \\
        --factors 0.5 0.88 1 2 --set task.train=ned.train --set task.dev=ned.testa --set finetuning.epochs=1

The head is drawn once and multiplied by each factor; rows, their order and all other weights are the same. A normal
that is cut at two deviations has 0.88 of the standard deviation of one that is not.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from keras_bert_flow.config.loading import load_config


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="YAML whose sections `task` and `finetuning` count")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--model", required=True, help="model directory, of Hugging Face's layout")
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--seed", default=1, type=int, help="of the head and of the order")
    parser.add_argument("--factors", nargs="+", default=(0.5, 1.0, 2.0), type=float)
    return parser.parse_args()


def save_with_head(arguments: argparse.Namespace, factor: float, folder: Path) -> None:
    """Save the model with a new head of the task, multiplied by the factor."""
    # These import Keras, whose backend `main` sets first.
    from keras_bert_flow.backends.runtime import seed_everything
    from keras_bert_flow.conversion.model_directory import load_task_model, save_model_directory
    from keras_bert_flow.data.model_tokenizer import read_tokenizer
    from keras_bert_flow.training.finetuning.task_data import read_task_files

    model = Path(arguments.model)
    task = read_task_files(load_config(arguments.config, arguments.set)).task
    seed_everything(arguments.seed)
    classifier = load_task_model(task.kind, model, labels=task.labels, **task.model_options)
    kernel = classifier.trainable_variables[-2]
    kernel.assign(kernel * factor)
    save_model_directory(classifier, folder, model / "vocab.txt", read_tokenizer(model).cased)


def finetune(arguments: argparse.Namespace, factor: float) -> dict[str, float]:
    """Return the scores after the last epoch."""
    with tempfile.TemporaryDirectory() as folder:
        model, output = Path(folder) / "model", Path(folder) / "out"
        save_with_head(arguments, factor, model)
        own = (f"finetuning.seeds=[{arguments.seed}]", "finetuning.compare_random=false", "finetuning.dropout_rate=0")
        changes = [part for change in (*arguments.set, *own) for part in ("--set", change)]
        command = ["finetune", "--task", arguments.config, "--model", str(model), "--output", str(output), *changes]
        subprocess.run([sys.executable, "-m", "keras_bert_flow", *command], check=True, stdout=sys.stderr)
        log = output / "pretrained" / f"seed-{arguments.seed}" / "log.jsonl"
        return json.loads(log.read_text().splitlines()[-1])


def main() -> None:
    arguments = parse_arguments()
    os.environ["KERAS_BACKEND"] = arguments.backend
    metric = load_config(arguments.config, arguments.set).task.main_metric
    print(f"| head × | {metric} | loss on dev |")
    print("|---:|---:|---:|")
    for factor in arguments.factors:
        scores = finetune(arguments, factor)
        print(f"| {factor:g} | {scores[f'dev_{metric}']:.3f} | {scores['dev_loss']:.3f} |", flush=True)


if __name__ == "__main__":
    main()
