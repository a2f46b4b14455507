"""Time the prediction of a task's file by the positions of a batch, beside transformers, and print a Markdown table.

    python -m benchmarks.prediction --backend torch
    python -m benchmarks.prediction --backend jax tensorflow torch --positions 1024 4096 --size base --threads 2
    python -m benchmarks.prediction --model out/finetuned/pretrained/seed-1/model --input sst2/dev.tsv
    python -m benchmarks.prediction --backend torch --positions 4096 --export onnx onnx-int8 saved_model litert

Without `--model` it is a classifier with random weights, of the size asked for, and a vocabulary of the words of the
texts. Without `--input` these are SST-2's of the folder that KBF_TEST_DATA names, or else docstrings that are on this
disk. What is timed begins with texts in memory and ends with labels in memory: encoding, model and decoding.
transformers has as many rows in a batch as the positions hold of the longest, once in its pipeline and once in a plain
loop, whose texts are also sorted by their length, so that the fewest positions are padding. Each side is a process of
its own, warmed up, so nothing is compiled any more; then they take turns, A B A B, and the ratios are of the medians.

With --export the model is also exported, and the exported one predicts in its runtime, without Keras. A second table
has its size on the disk, the time of one text by itself, and the share of right labels.
"""

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.exported_models import export_model, print_exported, time_one_text
from benchmarks.training_step import Timed, start_timed
from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.text.corpus.builtin import write_builtin_task
from keras_bert_flow.text.learner import learn_vocabulary
from keras_bert_flow.text.tokenizers.normalization import normalize_text
from keras_bert_flow.text.vocabulary import write_vocabulary

THEIRS = ("pipeline", "loop")
LABELS = ("0", "1")
EXPORTS = ("onnx", "onnx-int8", "saved_model", "litert", "litert-int8")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", nargs="+", default=("jax", "tensorflow", "torch"))
    parser.add_argument("--positions", nargs="+", type=int, default=[1 << power for power in range(10, 17)])
    add_model_arguments(parser)
    parser.add_argument("--export", nargs="+", default=(), choices=EXPORTS, help="formats to predict in as well")
    parser.add_argument("--threads", type=int, default=1, help="of the processor")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side")
    parser.add_argument("--clock", default="wall", choices=("wall", "cpu"), help="time passed, or of the processor")
    return parser.parse_args()


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what `find_examples` and `make_model` read."""
    parser.add_argument("--model", help="fine-tuned for classification; else random weights")
    parser.add_argument("--size", default="small", help="of random weights: tiny, mini, small, medium, base or large")
    parser.add_argument("--vocabulary-size", type=int, default=8000, help="of random weights")
    parser.add_argument("--sequence-length", type=int, default=64, help="of random weights")
    parser.add_argument("--input", help="file of the task: lines of a text, a tab and a label")
    parser.add_argument("--examples", type=int, default=2000, help="the first so many")


def find_examples(arguments: argparse.Namespace, folder: Path) -> list[TextExample]:
    """Return the texts to predict, and their labels; of a table the first two columns, or the built-in task."""
    if arguments.input is None and not os.environ.get("KBF_TEST_DATA"):
        _, path = write_builtin_task(folder)
        task = make_task("classification")
    else:
        path = arguments.input or Path(os.environ["KBF_TEST_DATA"]) / "sst2" / "train.tsv"
        task = make_task("classification", text="0", label="1", header=False)
    return list(task.read(path, arguments.examples))


def make_model(arguments: argparse.Namespace, texts: list[str], folder: Path) -> Path:
    """Write a model directory with random weights, and a vocabulary of the words of the texts."""
    os.environ["KERAS_BACKEND"] = arguments.backend[0]
    import keras_bert_flow as kbf

    words = Counter(word for text in texts for word in normalize_text(text, cased=False).split())
    write_vocabulary(folder / "vocab.txt", learn_vocabulary(words, arguments.vocabulary_size))
    backbone = kbf.BertBackbone.from_size(arguments.size, vocabulary_size=arguments.vocabulary_size)
    model = kbf.TextClassifier(backbone, num_classes=len(LABELS), labels=LABELS)
    model.save_to_preset(folder / "model", vocabulary_path=folder / "vocab.txt")
    make_task("classification", labels=LABELS).save(folder / "model", arguments.sequence_length)
    return folder / "model"


def take_turns(ours: Timed, theirs: Timed, positions: list[int], rounds: int) -> None:
    for keep in (False, *[True] * rounds):
        for count in positions:
            ours.run(f"ours-{count}", 1, keep)
            for name in THEIRS:
                theirs.run(f"{name}-{count}", 1, keep)


def print_rows(arguments: argparse.Namespace, backend: str, ours: Timed, theirs: Timed, examples: int) -> None:
    for count in arguments.positions:
        seconds = ours.seconds(f"ours-{count}", arguments.clock)
        others = [theirs.seconds(f"{name}-{count}", arguments.clock) for name in THEIRS]
        speeds = [f"{examples / other:,.0f} | {other / seconds:.2f}" for other in others]
        print(f"| {backend} | {count:,} | {examples / seconds:,.0f} | {' | '.join(speeds)} |", flush=True)


def peer(name: str) -> list[str]:
    """Return the command of a side without its arguments."""
    return [sys.executable, "-m", f"benchmarks.peers.{name}"]


def main() -> None:
    arguments = parse_arguments()
    columns = "".join(f" {name}, examples/s | ours / {name} |" for name in THEIRS)
    print(f"| backend | positions of a batch | examples/s |{columns}", "|---|" + "---:|" * 6, sep="\n", flush=True)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        examples = find_examples(arguments, folder)
        texts = [example.text for example in examples]
        model = Path(arguments.model).absolute() if arguments.model else make_model(arguments, texts, folder)
        table = folder / "texts.tsv"
        table.write_text("text\n" + "\n".join(" ".join(text.split()) for text in texts) + "\n")
        asked = [str(table), *map(str, arguments.positions)]
        exported = {name: export_model(model, folder, name) for name in arguments.export}
        sides = {name: ("predict_ours", model, name) for name in arguments.backend}
        sides |= {name: ("predict_exported", path, None) for name, path in exported.items()}
        latencies = {}
        for side, (module, path, backend) in sides.items():
            with (
                start_timed([*peer(module), str(path), *asked], arguments.threads, backend) as ours,
                start_timed([*peer("predict_transformers"), str(model), *asked], arguments.threads, "torch") as theirs,
            ):
                take_turns(ours, theirs, arguments.positions, arguments.rounds)
                if side in exported:
                    latencies[side] = time_one_text(ours, arguments)
            print_rows(arguments, side, ours, theirs, len(texts))
        if exported:
            print_exported(exported, latencies, examples)


if __name__ == "__main__":
    main()
