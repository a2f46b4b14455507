"""Score a fine-tuned model in each serving format on its task, and print a Markdown table.

    python -m benchmarks.exported_scores --config configs/tasks/stsb.yaml --model out/stsb/pretrained/seed-1/model

Each exported model is loaded in its runtime, without Keras, and asked about the whole dev file; the first row is this
package. The metrics are those of `kbf evaluate`.
"""

import argparse
import os
import tempfile
from pathlib import Path

from benchmarks.exported_models import POSITIONS, count_bytes, export_model
from benchmarks.peers.predict_exported import Exported
from benchmarks.prediction import EXPORTS
from keras_bert_flow.config.loading import load_config


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="configuration with the task")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--model", type=Path, required=True, help="fine-tuned for it")
    parser.add_argument("--export", nargs="+", default=EXPORTS, choices=EXPORTS, help="formats")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    os.environ.setdefault("KERAS_BACKEND", "torch")
    from keras_bert_flow.evaluation.evaluate import evaluate_model
    from keras_bert_flow.training.finetuning.task_data import read_task_files

    config = load_config(arguments.config, arguments.set)
    scores = evaluate_model(config, arguments.model)
    examples = read_task_files(config).dev
    print(f"{config.task.name}, {len(examples):,} examples of {config.task.dev}:\n")
    print("| | MB | " + " | ".join(scores) + " |", "|---|---:|" + "---:|" * len(scores), sep="\n")
    _print_row(f"this package on {os.environ['KERAS_BACKEND']}", arguments.model, scores)
    for name in arguments.export:
        with tempfile.TemporaryDirectory() as place:
            folder = export_model(arguments.model.absolute(), Path(place), name)
            exported = Exported(folder)
            _print_row(name, folder, exported.task.score(examples, exported.answer_examples(examples, POSITIONS)))


def _print_row(name: str, folder: Path, scores: dict[str, float]) -> None:
    cells = [f"{count_bytes(folder) / 1e6:.1f}", *(f"{value:.4f}" for value in scores.values())]
    print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
