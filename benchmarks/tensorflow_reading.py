"""Time calls of `fit` on TensorFlow by how Grain's batches are handed over, and print a Markdown table.

    python benchmarks/tensorflow_reading.py --calls 10 --steps 20

Keras' own way lets tf.data look for the best number of threads while it reads; this package's does not. Both train the
same tiny model on the same batch, which lies in memory, call by call in turns. Told is the time of a step in each call.
"""

import argparse
import os
import statistics
import time

os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import grain
import keras
import numpy as np

import keras_bert_flow as kbf
from keras_bert_flow.backends.runtime import keep_freed_memory

ROWS, WIDTH, PREDICTIONS, VOCABULARY = 32, 64, 10, 4000  # those of the quickstart


def make_model():
    rates = dict.fromkeys(("dropout_rate", "attention_dropout_rate"), 0.0)
    model = kbf.BertPretrainer(kbf.BertBackbone.from_size("tiny", vocabulary_size=VOCABULARY, **rates))
    model.compile()
    return model


def make_batches():
    rng = np.random.default_rng(0)
    shapes = {"token_ids": (VOCABULARY, WIDTH), "segment_ids": (2, WIDTH), "mask_positions": (WIDTH, PREDICTIONS)}
    inputs = {name: rng.integers(0, most, (ROWS, width), "int32") for name, (most, width) in shapes.items()}
    inputs["padding_mask"] = np.ones((ROWS, WIDTH), "int32")
    labels = {"mlm": rng.integers(0, VOCABULARY, (ROWS, PREDICTIONS)), "nsp": rng.integers(0, 2, ROWS)}
    weights = {"mlm": np.ones((ROWS, PREDICTIONS), "float32"), "nsp": np.ones(ROWS, "float32")}
    return grain.MapDataset.source([(inputs, labels, weights)]).repeat().to_iter_dataset()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--steps", type=int, default=20, help="of a call")
    arguments = parser.parse_args()
    keep_freed_memory()
    model, batches = make_model(), make_batches()
    ways = {"Keras' own": keras.Model.fit, "this package's": kbf.BertPretrainer.fit}
    seconds = {name: [] for name in ways}
    for call in range(arguments.calls + 1):
        for name, fit in ways.items():
            started_at = time.perf_counter()
            fit(model, batches, steps_per_epoch=arguments.steps, verbose=0, shuffle=False)
            if call:  # the first one compiles
                seconds[name].append((time.perf_counter() - started_at) / arguments.steps)
    print("| batches are handed over | mean, ms a step | median | each call |")
    print("|---|---:|---:|---|")
    for name, found in seconds.items():
        each = ", ".join(f"{value * 1000:.0f}" for value in found)
        mean, median = statistics.mean(found) * 1000, statistics.median(found) * 1000
        print(f"| {name} | {mean:.0f} | {median:.0f} | {each} |")


if __name__ == "__main__":
    main()
