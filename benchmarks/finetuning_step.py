"""Print the processor time of a fine-tuning step for several ways to batch a table, as a Markdown table.

    python -m benchmarks.finetuning_step --config configs/tasks/mrpc.yaml --model MODEL --backend torch --steps 6 \\
        --set task.train=pairs.tsv --set finetuning.precision=mixed_bfloat16

For a classification task. Batches are random and padded to their longest row, random as `kbf finetune` computes them by
default, or of rows of similar length. Every shape is compiled before the clock starts. Positions are the mean per
batch, padding included.
"""

import argparse
import os
import time
from pathlib import Path

ROWS = 1920  # of the table, the first ones
WAYS = {
    "random, padded": {"accumulate_batches": 1},
    "random, default": {},
    "similar length": {"group_by_length": True},
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="YAML whose sections `task` and `finetuning` count")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--model", required=True, type=Path, help="model directory, of Hugging Face's layout")
    parser.add_argument("--backend", default="jax")
    parser.add_argument("--steps", default=8, type=int)
    return parser.parse_args()


def measure_way(arguments: argparse.Namespace, name: str) -> tuple[int, int, float]:
    """Return the parts of a step, the positions of a batch, and the seconds of a step."""
    # These import Keras, whose backend `main` sets first.
    from keras_bert_flow.backends.runtime import arithmetic
    from keras_bert_flow.config.loading import load_config
    from keras_bert_flow.conversion.model_directory import load_task_model
    from keras_bert_flow.data.model_tokenizer import read_tokenizer
    from keras_bert_flow.data.tasks import read_batches
    from keras_bert_flow.layers import attention
    from keras_bert_flow.models.defaults import token_loss
    from keras_bert_flow.training.finetuning.starts import choose_trained_part
    from keras_bert_flow.training.finetuning.task_data import read_task_files
    from keras_bert_flow.training.finetuning.task_runs import choose_parts, make_batches
    from keras_bert_flow.training.optimizers.adam import make_guarded_optimizer

    changes = [f"finetuning.{key}={value}".lower() for key, value in WAYS[name].items()]
    config = load_config(arguments.config, [*arguments.set, *changes])
    settings, files = config.finetuning, read_task_files(config)
    tokenizer = read_tokenizer(arguments.model)
    features = files.task.encode(tokenizer, files.training[:ROWS], settings.sequence_length)
    parts = choose_parts(config, features)
    batches = make_batches(config, features, 1, parts)
    is_unpaddable = attention.is_unpaddable
    if name == "random, padded":
        attention.is_unpaddable = lambda padding_mask: False
    with arithmetic(settings.precision):
        model = load_task_model("classification", arguments.model, labels=files.task.labels)
        choose_trained_part(model, settings)
        optimizer = make_guarded_optimizer("adamw", settings.learning_rate, accumulate_batches=parts)
        model.compile(optimizer=optimizer, loss=token_loss(is_sum=parts > 1), auto_scale_loss=False)
        options = {"shuffle": False, "verbose": 0}
        warm_up = batches.steps_per_epoch if batches.compiles_shapes else 1
        model.fit(read_batches(batches), steps_per_epoch=warm_up * parts, **options)
        started_at = time.process_time()
        model.fit(read_batches(batches), steps_per_epoch=arguments.steps * parts, **options)
        seconds = (time.process_time() - started_at) / arguments.steps
    attention.is_unpaddable = is_unpaddable
    return parts, batches.mean_positions, seconds


def main() -> None:
    arguments = parse_arguments()
    os.environ["KERAS_BACKEND"] = arguments.backend
    print(f"| {arguments.backend} | parts | positions | processor seconds per step |\n|---|---:|---:|---:|")
    for name in WAYS:
        parts, positions, seconds = measure_way(arguments, name)
        print(f"| {name} | {parts} | {positions:,} | {seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
