"""A task that is learnt in seconds, and the configuration of runs on it."""

import numpy as np

from keras_bert_flow.config.loading import make_config
from tests.oracles.tiny_records import make_tiny_config

WORDS = tuple(f"word{number}" for number in range(45))
RUNS = ["pretrained/seed-1", "pretrained/seed-2", "random/seed-1", "random/seed-2"]


def write_table(path, count, seed):
    """Write texts of which every word tells the class: the words of the two do not overlap."""
    rng = np.random.default_rng(seed)
    lines = ["text\tlabel"]
    for row in range(count):
        label = row % 2
        words = rng.choice(WORDS[label:20:2], rng.integers(2, 7))
        lines.append(f"{' '.join(words)}\t{('no', 'yes')[label]}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def make_task_config(place, dev="dev.tsv", **finetuning):
    settings = {
        "batch_size": 8,
        "epochs": 12,  # at 8 one run of four has just begun to learn
        "sequence_length": 16,
        "learning_rate": 0.01,  # at 0.03 some runs stay with one class
        "seeds": (1, 2),
        "random_max_epochs": 1,  # `epochs`, if that is more
        "random_patience_epochs": 12,
    }
    values = {
        "task": {"name": "synthetic", "train": str(place / "train.tsv"), "dev": str(place / dev)},
        "finetuning": settings | finetuning,
    }
    return make_config(type(make_tiny_config()), values, "task")


def weights_of(folder):
    return (folder / "model" / "model.safetensors").read_bytes()
