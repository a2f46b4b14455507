"""Print what the hidden states of pre-trained models know of a task, by linear models, as a Markdown table.

    python benchmarks/hidden_states.py --config configs/wiki_sst2.yaml --models out/a/model out/b/model

Logistic regression on the mean of each layer's hidden states, the embeddings among them, and on all layers together; no
model is fine-tuned. Each cell has the best of the layers and regularisations on the dev table, so all are flattered
alike; the layer stands beside it, 0 for the embeddings. `benchmarks/words_only.py` has the same for words alone.
"""

import argparse
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression

import keras_bert_flow as kbf
from keras_bert_flow.config_file import load_config
from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.tasks.make import make_task

REGULARISATIONS = (0.001, 0.01, 0.1, 1.0)
ALL_LAYERS = "all"


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, help="YAML whose section `task` counts")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting")
    parser.add_argument("--models", nargs="+", required=True, type=Path, help="model directories")
    parser.add_argument("--examples", type=int, nargs="+", default=[200, 1000, 7000], help="labels to learn from")
    return parser.parse_args()


def read_features(folder: Path, texts: list[str]) -> dict[str, np.ndarray]:
    """Return the mean hidden states of each layer, and of all of them side by side, (texts, columns)."""
    layers = read_json_object(folder / "config.json")["num_hidden_layers"]
    model = kbf.load(folder, task="features", layers=list(range(layers + 1)), pooling="mean")
    features = np.stack([answer["features"] for answer in model.predict(texts)])
    parts = np.split(features, layers + 1, axis=1)
    return {str(number): part for number, part in enumerate(parts)} | {ALL_LAYERS: features}


def best_accuracy(train: dict, train_labels: np.ndarray, dev: dict, dev_labels: np.ndarray) -> tuple[float, str]:
    """Return the best accuracy and the layer that gives it."""
    found = []
    for layer, features in train.items():
        center, scale = features.mean(axis=0), features.std()
        for strength in REGULARISATIONS:
            model = LogisticRegression(C=strength, max_iter=1000).fit((features - center) / scale, train_labels)
            found.append((model.score((dev[layer] - center) / scale, dev_labels), layer))
    return max(found)


def main() -> None:
    arguments = parse_arguments()
    config = load_config(arguments.config, arguments.set)
    task = make_task(**config.task.arguments)
    tables = [task.read(path) for path in (config.task.train, config.task.dev)]
    labels = [np.array([example.label for example in table]) for table in tables]
    counts = [min(count, len(labels[0])) for count in arguments.examples]
    print(
        "| model | " + " | ".join(f"{count:,} labels %" for count in counts) + " |",
        "|---|" + "---:|" * len(counts),
        sep="\n",
    )
    for folder in arguments.models:
        train, dev = (read_features(folder, [example.text for example in table]) for table in tables)
        cells = []
        for count in counts:
            few = {layer: features[:count] for layer, features in train.items()}
            accuracy, layer = best_accuracy(few, labels[0][:count], dev, labels[1])
            cells.append(f"{100 * accuracy:.1f} ({layer})")
        print(f"| {folder} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
