"""Predict the texts of a file with an exported classifier, in its runtime, in batches of so many positions.

python -m benchmarks.peers.predict_exported FOLDER TEXTS POSITIONS...
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.serving import serve
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.data.tasks import ONLY_OUTPUT, make_inputs, plan_tightly
from keras_bert_flow.export.format import find_export_format
from keras_bert_flow.tasks.formats.tables import read_columns
from keras_bert_flow.tasks.registry import read_task

NAMES = {"token_ids": "input_ids", "segment_ids": "token_type_ids", "padding_mask": "attention_mask"}
ONE_BY_ONE = 50  # texts by which the latency of one is measured


class Exported:
    """An exported classifier or regressor, without Keras."""

    def __init__(self, folder: Path, threads: int = 1):
        description = json.loads((folder / "export.json").read_text())
        self.task, self.sequence_length = read_task(folder)
        self.tokenizer = read_tokenizer(folder)
        self.names = {ours: theirs for ours, theirs in NAMES.items() if theirs in description["inputs"]}
        self.run = find_export_format(description["format"]).load(folder / description["file"], threads)

    def answer(self, texts: Sequence[str], positions: int) -> list[Any]:
        """Return a prediction for each text."""
        return self.answer_examples([self.task.make_example(text) for text in texts], positions)

    def answer_examples(self, examples: Sequence[Any], positions: int) -> list[Any]:
        """Return a prediction for each example of the task."""
        features = self.task.encode(self.tokenizer, examples, self.sequence_length)
        logits: list[Any] = [None] * len(features)
        for rows, width in plan_tightly(features.lengths, positions):
            inputs = make_inputs(features, rows, width)
            found = self.run({name: inputs[ours].astype(np.int64) for ours, name in self.names.items()})["logits"]
            for row, answer in zip(rows, found, strict=True):
                logits[row] = answer
        return self.task.decode({ONLY_OUTPUT: np.stack(logits)}, features, examples)


def main() -> None:
    folder, path, *positions = sys.argv[1:]
    exported = Exported(Path(folder), int(os.environ["OMP_NUM_THREADS"]))
    texts = [text for _, (text,) in read_columns(path, ["text"], [], header=True, max_examples=None)]

    def predict(count: int, steps: int) -> None:
        for _ in range(steps):
            exported.answer(texts, count)

    def predict_one_by_one(steps: int) -> None:
        for _ in range(steps):
            for text in texts[:ONE_BY_ONE]:
                exported.answer([text], 1)

    jobs = {f"ours-{count}": lambda steps, count=int(count): predict(count, steps) for count in positions}
    serve(jobs | {"one": predict_one_by_one})


if __name__ == "__main__":
    main()
