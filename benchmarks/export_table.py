"""Export a small model of every kind in every format by every backend that can, and print Markdown tables.

    python -m benchmarks.export_table
    python -m benchmarks.export_table --size base --kind classification

A number is the largest difference between the outputs of the exported model in its runtime and those of the model in
Keras, on the sentences of `keras_bert_flow/export/comparison.py`. The weights are random.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from keras_bert_flow.export.comparison import SENTENCES
from keras_bert_flow.export.format import FORMATS, find_export_format
from keras_bert_flow.text.learner import learn_vocabulary
from keras_bert_flow.text.tokenizers.normalization import normalize_text
from keras_bert_flow.text.vocabulary import write_vocabulary

VOCABULARY_SIZE = 1000
CLASSES = {"num_classes": 3, "labels": ("O", "B-X", "I-X")}
# kind → class, whether it needs a pooler, arguments
HEADS = {
    "features": (None, True, {}),
    "classification": ("TextClassifier", True, CLASSES),
    "regression": ("TextRegressor", True, {}),
    "multi_label": ("MultiLabelClassifier", True, CLASSES),
    "token_classification": ("TokenClassifier", False, CLASSES),
    "question_answering": ("QuestionAnswerer", False, {}),
    "multiple_choice": ("MultipleChoice", True, {}),
    "sentence_embedding": ("TextEmbedder", False, {}),
    "fill_mask": ("MaskedLM", False, {}),
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kind", nargs="+", default=[*HEADS], choices=[*HEADS])
    parser.add_argument("--size", default="tiny", help="tiny, mini, small, medium, base or large")
    parser.add_argument("--written-by", metavar="BACKEND", help=argparse.SUPPRESS)  # of a child process
    return parser.parse_args()


def list_columns() -> list[tuple[str, str]]:
    """Return the pairs of a format and a backend that writes it."""
    return [(name, backend) for name in FORMATS for backend in find_export_format(name).packages]


def write_model(kind: str, size: str, folder: Path) -> Path:
    """Write a model directory with random weights, and a vocabulary of the sentences."""
    import keras_bert_flow as kbf

    name, use_pooler, options = HEADS[kind]
    words = Counter(word for text in SENTENCES for word in normalize_text(text, cased=False).split())
    pieces = learn_vocabulary(words, VOCABULARY_SIZE)
    write_vocabulary(folder / "vocab.txt", pieces)
    backbone = kbf.Backbone.from_size(size, vocabulary_size=len(pieces), use_pooler=use_pooler)
    model = getattr(kbf, name)(backbone, **options) if name else backbone
    model.save_to_preset(folder / kind, vocabulary_path=folder / "vocab.txt")
    return folder / kind


def export_all(arguments: argparse.Namespace) -> None:
    """Print a line of JSON for each kind and format of this backend."""
    from keras_bert_flow.export.export_model import export_model

    formats = [name for name, backend in list_columns() if backend == arguments.written_by]
    for kind in arguments.kind:
        with tempfile.TemporaryDirectory() as place:
            model = write_model(kind, arguments.size, Path(place))
            for name in formats:
                asked_as = kind if kind == "fill_mask" else None
                done = export_model(model, f"{place}/{name}", name, asked_as=asked_as)
                print(json.dumps([kind, name, done.largest_difference]), flush=True)


def read_results() -> dict[tuple[str, str, str], float]:
    """Return the number of each kind, format and backend, each backend in a process of its own."""
    results = {}
    for backend in dict.fromkeys(backend for _, backend in list_columns()):
        command = [sys.executable, "-m", "benchmarks.export_table", *sys.argv[1:], "--written-by", backend]
        environment = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}
        child = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        for line in child.stdout.splitlines():
            if line.startswith("["):
                kind, name, number = json.loads(line)
                results[kind, name, backend] = number
    return results


def main() -> None:
    arguments = parse_arguments()
    if arguments.written_by:
        export_all(arguments)
        return
    columns, results = list_columns(), read_results()
    titles = [f"{find_export_format(name).title}, {backend}" for name, backend in columns]
    print(f"| model | {' | '.join(titles)} |", f"|---|{'---:|' * len(columns)}", sep="\n")
    for kind in arguments.kind:
        numbers = [results[kind, *column] for column in columns]
        print(f"| `{kind}` | {' | '.join(f'{number:.1e}' for number in numbers)} |")
    print("\n| format | not written by | because |", "|---|---|---|", sep="\n")
    for known in map(find_export_format, FORMATS):
        for backend, reason in known.refusals.items():
            print(f"| {known.title} | {backend} | {reason} |")


if __name__ == "__main__":
    main()
