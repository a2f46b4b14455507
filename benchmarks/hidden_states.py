"""Print what the hidden states of pre-trained models know of a task, by linear models, as a Markdown table.

    python benchmarks/hidden_states.py --config configs/wiki_sst2.yaml --models out/a/model out/b/model

Logistic regression on the mean of each layer's hidden states, 0 the embeddings, and on all layers together; no model
is fine-tuned. The regularisation is chosen by cross-validation on the training rows, as that of `head_start: probe` is:
the row of the last layer is where such fine-tuning starts. `benchmarks/words_only.py` has the same for words alone.
"""

import argparse
from pathlib import Path

import numpy as np

import keras_bert_flow as kbf
from keras_bert_flow.config_file import load_config
from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.tasks.linear_head import fit_head
from keras_bert_flow.tasks.make import make_task

ALL_LAYERS = "all"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="YAML whose section `task` counts")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--models", nargs="+", required=True, type=Path, help="model directories")
    parser.add_argument("--last-layer", action="store_true", help="print the row of the last layer only")
    parser.add_argument("--examples", type=int, nargs="+", default=[200, 1000, 7000], help="labels to learn from")
    return parser.parse_args()


def read_features(folder: Path, texts: list[str]) -> dict[str, np.ndarray]:
    """Return the mean hidden states of each layer, and of all of them side by side, (texts, columns)."""
    layers = read_json_object(folder / "config.json")["num_hidden_layers"]
    model = kbf.load(folder, task="features", layers=list(range(layers + 1)), pooling="mean")
    features = np.stack([answer["features"] for answer in model.predict(texts)])
    parts = np.split(features, layers + 1, axis=1)
    return {str(number): part for number, part in enumerate(parts)} | {ALL_LAYERS: features}


def measure_accuracy(train: np.ndarray, train_labels: np.ndarray, dev: np.ndarray, dev_labels: np.ndarray) -> float:
    """Return the accuracy of a linear head that was fitted to the training rows."""
    rng = np.random.default_rng(1)
    kernel, bias = fit_head("classification", train, train_labels, int(dev_labels.max()) + 1, rng)
    return float(np.mean((dev @ kernel + bias).argmax(axis=1) == dev_labels))


def main() -> None:
    arguments = parse_arguments()
    config = load_config(arguments.config, arguments.set)
    task = make_task(**config.task.arguments)
    tables = [task.read(path) for path in (config.task.train, config.task.dev)]
    classes = sorted({example.label for example in tables[0]})
    labels = [np.array([classes.index(example.label) for example in table]) for table in tables]
    counts = [min(count, len(labels[0])) for count in arguments.examples]
    columns = " | ".join(f"{count:,} labels %" for count in counts)
    print(f"| model | layer | {columns} |", "|---|---|" + "---:|" * len(counts), sep="\n")
    for folder in arguments.models:
        train, dev = (read_features(folder, [example.text for example in table]) for table in tables)
        layers = [layer for layer in train if layer != ALL_LAYERS][-1:] if arguments.last_layer else train
        for layer in layers:
            cells = [
                f"{100 * measure_accuracy(train[layer][:count], labels[0][:count], dev[layer], labels[1]):.1f}"
                for count in counts
            ]
            print(f"| {folder} | {layer} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
