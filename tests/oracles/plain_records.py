"""Make pre-training records by the rules, one plain number after another, for tests to count, damage and judge."""

import numpy as np

from keras_bert_flow.records.tfrecord import write_tfrecords
from keras_bert_flow.results.manifest import write_manifest
from keras_bert_flow.text.vocabulary import write_vocabulary
from tests.oracles.examples import encode_example

LENGTH, PREDICTIONS, FRACTION = 32, 5, 0.15
PAD, UNK, CLS, SEP, MASK = 0, 10, 11, 12, 13  # not where our own vocabularies have them
PIECES = (
    "[PAD]",
    *(f"word{number}" for number in range(1, 10)),
    *("[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *(f"##piece{number}" for number in range(14, 200)),
)
CONFIG = {
    "sequence_length": LENGTH,
    "max_predictions": PREDICTIONS,
    "masked_fraction": FRACTION,
    "vocabulary_size": len(PIECES),
    "cased": False,
}


def make_features(rng, label=None, hidden=0.8, kept=0.1, lengths=None, pair=True, predictions=None) -> dict:
    """Return the features of one record as plain lists; `lengths` are those of its segments."""
    first, second = lengths or rng.integers(4, 15, 2).tolist()
    words = rng.integers(14, len(PIECES), first + second).tolist()
    if pair:
        tokens = [CLS, *words[:first], SEP, *words[first:], SEP]
        segments = [0] * (first + 2) + [1] * (second + 1)
    else:
        tokens = [CLS, *words, SEP]
        segments = [0] * len(tokens)
    places = [place for place, token in enumerate(tokens) if token not in (CLS, SEP)]
    count = min(PREDICTIONS, max(1, round(len(tokens) * FRACTION))) if predictions is None else predictions
    positions = sorted(rng.choice(places, count, replace=False).tolist())
    originals = [tokens[place] for place in positions]
    for place in positions:
        draw = rng.random()
        if draw < hidden:
            tokens[place] = MASK
        elif draw >= hidden + kept:
            tokens[place] = int(rng.integers(len(PIECES)))
    return {
        "input_ids": _fill(tokens, LENGTH),
        "input_mask": _fill([1] * len(tokens), LENGTH),
        "segment_ids": _fill(segments, LENGTH),
        "masked_lm_positions": _fill(positions, PREDICTIONS),
        "masked_lm_ids": _fill(originals, PREDICTIONS),
        "masked_lm_weights": _fill([1.0] * count, PREDICTIONS),
        "next_sentence_labels": [int(rng.random() < 0.52) if label is None else label],
    }


def make_many(count=400, seed=0, **settings) -> list[dict]:
    rng = np.random.default_rng(seed)
    return [make_features(rng, **settings) for _ in range(count)]


def encode(features: dict) -> bytes:
    return encode_example(
        {
            name: np.array(values, np.float32 if name == "masked_lm_weights" else np.int64)
            for name, values in features.items()
        }
    )


def publish_plain(folder, train, held_out=None, counters=None, pieces=PIECES, **config):
    """Publish records, given as features or as bytes, in two files for training and one held out."""
    folder.mkdir(parents=True)
    held_out = make_many(20, seed=99) if held_out is None else held_out
    half = len(train) // 2
    files = []
    for name, rows in (
        ("train-00000-of-00002", train[:half]),
        ("train-00001-of-00002", train[half:]),
        ("held_out-00000-of-00001", held_out),
    ):
        records = [row if isinstance(row, bytes) else encode(row) for row in rows]
        files += write_tfrecords(folder / f"{name}.tfrecord", records)
    write_vocabulary(folder / "vocab.txt", pieces)
    write_manifest(folder, "records", "plain", CONFIG | config, {}, counters or {}, files)
    return folder


def _fill(values: list, length: int) -> list:
    return values + [0] * (length - len(values))
