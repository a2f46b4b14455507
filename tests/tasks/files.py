"""What the tests of several tasks use: files to read, the message of an error, a vocabulary of a few words."""

import os
from pathlib import Path

import numpy as np
import pytest

from keras_bert_flow.tasks.core.task import Task
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer

DATA = os.environ.get("KBF_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d", "e", "##f", "g")
RACE = {"context": "article", "question": "questions", "choices": ("options",), "label": "answers"}
TOKENIZER = WordPieceTokenizer(PIECES)
PAD, UNK, CLS, SEP, MASK, A, B, C, D, E, F, G = range(len(PIECES))


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def message_of(error: type[Exception], call, *args, **kwargs) -> str:
    with pytest.raises(error) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message
    assert "Received: " in message
    return message


def real_task(task: Task, folder: str) -> tuple[Task, list, list]:
    """Return the task as its training table teaches it, and the examples of both tables."""
    training, dev = (task.read(Path(DATA) / folder / f"{part}.tsv") for part in ("train", "dev"))
    return task.learn(training), training, dev


def shuffled(features, outputs: np.ndarray):
    """Return the same rows in another order."""
    order = np.random.default_rng(3).permutation(len(features))
    count = features.sequences_per_row
    sequences = [features.token_ids[row * count + place] for row in order for place in range(count)]
    firsts = features.first_lengths.reshape(-1, count)[order].ravel()
    kind = type(features)
    labels = {name: values[order] for name, values in features.labels.items()}
    return kind(sequences, firsts, features.examples[order], labels, count), outputs[order]
