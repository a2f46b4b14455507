"""Print the gradient variance of batches dealt in several ways, as a Markdown table.

    python -m benchmarks.gradient_noise --config configs/tasks/mrpc.yaml --model MODEL --set task.train=pairs.tsv

For a classification task with two classes. The gradient is that of the output layer on the pooled outputs of the model,
which are not trained: of a new head, which says 1/2 for either class, and of logistic regression fitted to the table.
Its variance over the batches of a pass is divided by that of batches of independent rows, the variance over rows /
batch size. Windows are random rows, sorted by length and cut into batches, in random order. Positions are those of
batches as wide as their longest row, over the number of tokens.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
from sklearn.linear_model import LogisticRegression

from keras_bert_flow.config.loading import load_config
from keras_bert_flow.conversion.model_directory import load_task_model
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.data.tasks import bucket_by_length, choose_widths, predict_features, shuffle_into_batches
from keras_bert_flow.training.finetuning.task_data import read_task_files

Deal = Callable[[np.random.Generator], list[np.ndarray]]
WIDTHS = 4
WINDOWS = (50, 8, 4, 2)  # batches


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="YAML whose sections `task` and `finetuning` count")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--model", required=True, type=Path, help="model directory, of Hugging Face's layout")
    parser.add_argument("--passes", default=30, type=int, help="over the table, each dealt anew")
    return parser.parse_args()


def read_table(arguments: argparse.Namespace) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Return pooled outputs (rows, hidden), labels and lengths (rows,), and the batch size."""
    config = load_config(arguments.config, arguments.set)
    files = read_task_files(config)
    task, length = files.task, config.finetuning.sequence_length
    features = task.encode(read_tokenizer(arguments.model), files.training, length)
    classifier = load_task_model("classification", arguments.model, labels=task.labels)
    pooled = keras.Model(classifier.input, classifier.get_layer("classifier_dropout").input)
    outputs = predict_features(pooled, features)["logits"].astype(float)
    return outputs, features.labels["logits"], features.lengths, config.finetuning.batch_size


def list_deals(lengths: np.ndarray, size: int) -> Iterator[tuple[str, Deal]]:
    yield "random", lambda rng: shuffle_into_batches(len(lengths), size, rng)
    widths = choose_widths(lengths, WIDTHS)
    yield f"similar length, {WIDTHS} widths", lambda rng: bucket_by_length(lengths, widths, size, rng)
    for batches in WINDOWS:
        yield f"windows of {batches} batches", lambda rng, batches=batches: deal_windows(lengths, size, batches, rng)


def deal_windows(lengths: np.ndarray, size: int, batches: int, rng: np.random.Generator) -> list[np.ndarray]:
    dealt = []
    for window in shuffle_into_batches(len(lengths), size * batches, rng):
        rows = window[np.argsort(lengths[window], kind="stable")]
        dealt += [rows[start : start + size] for start in range(0, len(rows), size)]
    return [dealt[place] for place in rng.permutation(len(dealt))]


def head_gradients(outputs: np.ndarray, labels: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Return the gradient of each row's loss for kernel and bias, (rows, hidden + 1)."""
    return (probabilities - labels)[:, None] * np.hstack([outputs, np.ones((len(labels), 1))])


def measure_variance(gradients: np.ndarray, deal: Deal, size: int, passes: int) -> float:
    """Return the variance of whole batches' mean gradients over that of means of independent rows."""
    centred = gradients - gradients.mean(axis=0)
    batches = [rows for seed in range(passes) for rows in deal(np.random.default_rng(seed)) if len(rows) == size]
    found = np.mean([np.square(centred[rows].mean(axis=0)).sum() for rows in batches])
    return float(found / (np.square(centred).sum(axis=1).mean() / size))


def main() -> None:
    arguments = parse_arguments()
    outputs, labels, lengths, size = read_table(arguments)
    fitted = LogisticRegression(max_iter=2000).fit(outputs, labels).predict_proba(outputs)[:, 1]
    states = [head_gradients(outputs, labels, found) for found in (np.full(len(labels), 0.5), fitted)]
    print("| batches | variance, new head | variance, fitted head | positions / tokens |\n|---|---:|---:|---:|")
    for name, deal in list_deals(lengths, size):
        variances = [measure_variance(gradients, deal, size, arguments.passes) for gradients in states]
        positions = sum(int(lengths[rows].max()) * len(rows) for rows in deal(np.random.default_rng(0)))
        print(f"| {name} | {variances[0]:.2f} | {variances[1]:.2f} | {positions / lengths.sum():.2f} |", flush=True)


if __name__ == "__main__":
    main()
