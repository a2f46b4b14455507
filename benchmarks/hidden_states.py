"""Print what the hidden states of pre-trained models know of a task, by linear models, as a Markdown table.

    python benchmarks/hidden_states.py --config configs/wiki_sst2.yaml --models out/a/model out/b/model

Logistic regression on the mean of each layer's hidden states, 0 the embeddings, and on all layers together; no model
is fine-tuned. The regularisation is chosen by cross-validation on the training rows, as that of `head_start: probe` is:
the row of the last layer is where such fine-tuning starts. A model pre-trained with a bag of words has a row for
`pooling: bag_of_words`, and where the configuration has `finetuning.label_words`, one that begins from these.
`benchmarks/words_only.py` has the same for words alone.
"""

import argparse
from pathlib import Path

import numpy as np

import keras_bert_flow as kbf
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.conversion.directory import check_words_head
from keras_bert_flow.data.tasks import ONLY_OUTPUT, predict_features
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.tasks.baselines.linear_head import fit_head
from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.training.finetuning.starts import LinearProbe
from keras_bert_flow.training.finetuning.task_data import find_label_words

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


def measure_probes(
    folder: Path, config: PipelineConfig, tables: list[list[TextExample]], counts: list[int]
) -> dict[str, list[float]]:
    """Return the accuracies of probes on the vectors of a bag of words, with and without label words, a count each."""
    try:
        check_words_head(folder)
    except ValueError:
        return {}
    task = make_task(**config.task.arguments).learn(tables[0])
    tokenizer, length = kbf.WordPieceTokenizer.from_file(folder / "vocab.txt"), config.finetuning.sequence_length
    model = kbf.load_task_model(task.kind, folder, labels=task.labels, pooling="bag_of_words")
    encoded = {count: task.encode(tokenizer, tables[0][:count], length) for count in counts}
    dev, found = task.encode(tokenizer, tables[1], length), {}
    words = find_label_words(config.finetuning.label_words, task.labels, tokenizer)
    for name, given in {"bag of words": [], **({"bag of words, label words": words} if words else {})}.items():
        probe, found[name] = LinearProbe(model, task.kind, given), []
        for train in encoded.values():
            probe.start_head(train, config.finetuning.max_widths, seed=1)
            answers = predict_features(model, dev)[ONLY_OUTPUT].argmax(axis=1)
            found[name].append(float(np.mean(answers == dev.labels[ONLY_OUTPUT])))
    return found


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
        for name, scores in measure_probes(folder, config, tables, counts).items():
            print(f"| {folder} | {name} | {' | '.join(f'{100 * score:.1f}' for score in scores)} |", flush=True)


if __name__ == "__main__":
    main()
