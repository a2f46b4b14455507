"""Feed the texts of a task table to `model.fit`: encoded once, then shuffled by number."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import grain
import numpy as np

from keras_bert_flow.data.pretraining import READING, shuffle_endlessly
from keras_bert_flow.text.tokenizer import WordPieceTokenizer

LENGTH_STEP = 8  # sequences are as long as the longest text needs, rounded up to this


@dataclass(frozen=True)
class TaskInputs:
    """Encoded texts, each field int32, (examples, length)."""

    token_ids: np.ndarray
    segment_ids: np.ndarray
    padding_mask: np.ndarray

    def __len__(self) -> int:
        return len(self.token_ids)

    def take(self, rows) -> dict[str, np.ndarray]:
        """Return the model's inputs for some rows."""
        return {
            "token_ids": self.token_ids[rows],
            "segment_ids": self.segment_ids[rows],
            "padding_mask": self.padding_mask[rows],
        }


def encode_texts(
    tokenizer: WordPieceTokenizer, texts: Sequence[str], text_pairs: Sequence[str] | None, sequence_length: int
) -> TaskInputs:
    """Encode texts as [CLS] A [SEP], or [CLS] A [SEP] B [SEP]; what is too long loses the end of its longer part.

    Source: google-research/bert, run_classifier.py, `convert_single_example`.
    """
    firsts = tokenizer.encode_batch(texts)
    seconds = tokenizer.encode_batch(text_pairs) if text_pairs is not None else [None] * len(firsts)
    rows = [_join(tokenizer, first, second, sequence_length) for first, second in zip(firsts, seconds, strict=True)]
    longest = max((len(token_ids) for token_ids, _ in rows), default=LENGTH_STEP)
    length = min(sequence_length, -(-longest // LENGTH_STEP) * LENGTH_STEP)
    inputs = {name: np.zeros((len(rows), length), np.int32) for name in ("token_ids", "segment_ids", "padding_mask")}
    for row, (token_ids, first_length) in enumerate(rows):
        inputs["token_ids"][row, : len(token_ids)] = token_ids
        inputs["segment_ids"][row, first_length : len(token_ids)] = 1
        inputs["padding_mask"][row, : len(token_ids)] = 1
    return TaskInputs(**inputs)


def task_dataset(
    inputs: TaskInputs, labels: np.ndarray, batch_size: int, seed: int = 1, start_step: int = 0
) -> grain.IterDataset:
    """Return endless shuffled batches (x, y); use with `steps_per_epoch`.

    Args:
        inputs: encoded texts.
        labels: int, (examples,).
        batch_size: examples of a batch.
        seed: of the order; each pass over the examples has another order.
        start_step: batches to leave out at the start, at no cost.
    """
    batches = shuffle_endlessly(grain.MapDataset.range(len(inputs)), seed).batch(batch_size)[start_step:]
    return batches.map(lambda rows: (inputs.take(rows), labels[rows])).to_iter_dataset(READING)


def read_tokenizer(model: Path) -> WordPieceTokenizer:
    """Return the tokenizer of a model directory; its `tokenizer_config.json` says whether it keeps case."""
    settings = model / "tokenizer_config.json"
    values = json.loads(settings.read_text(encoding="utf-8")) if settings.is_file() else {}
    return WordPieceTokenizer.from_file(model / "vocab.txt", cased=not values.get("do_lower_case", True))


def predict_probabilities(classifier, inputs: TaskInputs, batch_size: int, follow=iter) -> np.ndarray:
    """Return float32, (examples, classes); the last batch is filled up, so that every batch has one shape.

    `follow` takes the batches' first rows and yields them again; it may raise to break off.
    """
    rows = []
    for start in follow(range(0, len(inputs), batch_size)):
        chosen = np.minimum(np.arange(start, start + batch_size), len(inputs) - 1)
        rows.append(np.asarray(classifier.predict_on_batch(inputs.take(chosen)), np.float32))
    logits = np.concatenate(rows)[: len(inputs)]
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


def _join(tokenizer: WordPieceTokenizer, first, second, sequence_length: int) -> tuple[np.ndarray, int]:
    """Return the token ids and how many of them are of segment 0."""
    if second is None:
        token_ids = np.concatenate([[tokenizer.cls_id], first[: sequence_length - 2], [tokenizer.sep_id]])
        return token_ids, len(token_ids)
    lengths = [len(first), len(second)]
    while sum(lengths) > sequence_length - 3:
        lengths[lengths[0] <= lengths[1]] -= 1
    parts = ([tokenizer.cls_id], first[: lengths[0]], [tokenizer.sep_id], second[: lengths[1]], [tokenizer.sep_id])
    return np.concatenate(parts), lengths[0] + 2
