"""Predict the texts of a file with a model directory, in batches of so many positions.

KERAS_BACKEND=torch python -m benchmarks.peers.predict_ours MODEL TEXTS POSITIONS...
"""

import sys

import keras_bert_flow as kbf
from benchmarks.peers.serving import serve
from keras_bert_flow.tasks.formats.tables import read_columns

folder, path, *positions = sys.argv[1:]
predictors = {f"ours-{count}": kbf.load(folder, batch_positions=int(count)) for count in positions}
texts = [text for _, (text,) in read_columns(path, ["text"], [], header=True, max_examples=None)]


def run(predictor, steps: int) -> None:
    for _ in range(steps):
        answers = predictor.answer([predictor.task.make_example(text) for text in texts])
        if len(answers) != len(texts):
            raise SystemExit("An answer is missing.")


serve({name: lambda steps, one=predictor: run(one, steps) for name, predictor in predictors.items()})
