"""Time a text in models with random weights, with one thread, as the program that `kbf init --small` asks.

It reads an object from standard input, and prints one: `index`, of the first model that takes at most `most_seconds`,
null if none does, and `seconds`, of that model or else of the last.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from keras_bert_flow.export.format import find_export_format
from keras_bert_flow.export.request import choose_backend
from keras_bert_flow.installed import check_installed
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary

WARM_UP_CALLS, TIMED_SECONDS, TIMINGS = 3, 0.1, 5  # the best of several: what the machine does when nothing else runs
LABELS, TASK = ("0", "1"), "classification"
ONNX, INT8 = "onnx", "-int8"
INPUTS = ("input_ids", "token_type_ids", "attention_mask")


def find_first(count: int, measure: Callable[[int], float], most_seconds: float) -> tuple[int | None, float]:
    """Return the first of some models that is fast enough, with its seconds; or None, with those of the last.

    Args:
        count: number of models, the slowest first, so that few are measured: those that halve what is left.
        measure: returns the seconds of the model with an index.
    """
    low, high, seconds = 0, count, {}
    while low < high:
        middle = (low + high) // 2
        seconds[middle] = measure(middle)
        if seconds[middle] <= most_seconds:
            high = middle
        else:
            low = middle + 1
    return (low, seconds[low]) if low < count else (None, seconds[count - 1])


def time_model(model: Mapping[str, Any], length: int, form: str) -> float:
    """Return the processor seconds of a text by itself in a model with random weights.

    On one thread, and where nothing else runs, these are the seconds that pass.

    Args:
        model: arguments of a backbone, with its `family`.
        length: tokens of the text.
        form: '' for `kbf.load`, with the tokenization of the text; `-onnx` or `-int8` for its ONNX file in its runtime.
    """
    with TemporaryDirectory() as place:
        folder = write_random(model, length, Path(place))
        answer = (_load_exported if form else _load)(folder, length, form)
        for _ in range(WARM_UP_CALLS):
            answer()
        means = []
        for _ in range(TIMINGS):
            started, calls = time.process_time(), 0
            while (elapsed := time.process_time() - started) < TIMED_SECONDS:
                answer()
                calls += 1
            means.append(elapsed / calls)
    return min(means)


def write_random(model: Mapping[str, Any], length: int, place: Path) -> Path:
    """Write the directory of a classifier with random weights, whose vocabulary is of numbered words."""
    from keras_bert_flow.models.backbone import Backbone
    from keras_bert_flow.models.heads.classifiers import TextClassifier

    shape, folder = dict(model), place / "model"
    words = range(shape["vocabulary_size"] - len(SPECIAL_PIECES))
    write_vocabulary(place / "vocab.txt", [*SPECIAL_PIECES, *(f"w{number}" for number in words)])
    classifier = TextClassifier(Backbone(**shape, use_pooler=True), num_classes=len(LABELS), labels=LABELS)
    classifier.save_to_preset(folder, vocabulary_path=place / "vocab.txt")
    make_task(TASK, labels=LABELS).save(folder, length)
    return folder


def _load(folder: Path, length: int, form: str) -> Callable[[], Any]:
    from keras_bert_flow.prediction.load import load

    model, text = load(folder), " ".join(["w0"] * (length - 2))  # and [CLS] and [SEP]
    return lambda: model.predict([text])


def _load_exported(folder: Path, length: int, form: str) -> Callable[[], Any]:
    import numpy as np

    from keras_bert_flow.export.served_model import load_served

    known, served = find_export_format(ONNX), load_served(folder, TASK)
    path = folder / known.file
    known.write(served, path, form == INT8)
    run = known.load(path, threads=1)
    inputs = {name: np.ones((1, length), np.int64) for name in INPUTS if name in served.inputs}
    return lambda: run(inputs)


def main() -> None:
    asked = json.load(sys.stdin)
    backend = choose_backend(ONNX) if asked["form"] else asked["backend"]
    known = find_export_format(ONNX)
    check_installed((backend, *((*known.packages[backend], known.runtime) if asked["form"] else ())))
    os.environ["KERAS_BACKEND"] = backend
    answer, sys.stdout = sys.stdout, sys.stderr  # whatever else is printed must not stand in the answer
    models = asked["models"]

    def measure(index: int) -> float:
        return time_model(models[index], asked["length"], asked["form"])

    index, seconds = find_first(len(models), measure, asked["most_seconds"])
    print(json.dumps({"index": index, "seconds": seconds}), file=answer)


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        raise SystemExit(str(error)) from None
