"""Write a small published folder of pre-training records, without Beam, and the configuration of a run on it."""

from functools import cache

import numpy as np

from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.records.example import encode_records
from keras_bert_flow.records.tfrecord import write_tfrecords
from keras_bert_flow.results.manifest import write_manifest
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary

VOCABULARY_SIZE = 50
SEQUENCE_LENGTH = 16
MAX_PREDICTIONS = 3
PAD, UNK, CLS, SEP, MASK = range(5)


def write_tiny_records(folder, train=(13, 10), held_out=7, seed=0, vocabulary_size=VOCABULARY_SIZE, words=None):
    """Publish records of ragged lengths with one to three predictions; `train` counts the records of each file."""
    folder.mkdir(parents=True)
    files = []
    *shards, last = _make_shards((*train, held_out), seed)
    for number, records in enumerate(shards):
        files += write_tfrecords(folder / f"train-{number:05d}-of-{len(train):05d}.tfrecord", records)
    files += write_tfrecords(folder / "held_out-00000-of-00001.tfrecord", last)
    words = words or [f"word{number}" for number in range(5, vocabulary_size)]
    write_vocabulary(folder / "vocab.txt", [*SPECIAL_PIECES, *words])
    config = {
        "sequence_length": SEQUENCE_LENGTH,
        "masked_fraction": 0.15,
        "max_predictions": MAX_PREDICTIONS,
        "vocabulary_size": vocabulary_size,
        "cased": False,
        "seed": seed,
    }
    write_manifest(folder, "records", f"tiny-{seed}", config, {}, {}, files)
    return folder


@cache
def _make_shards(counts, seed):
    """Return the records of each shard, which tests ask for a thousand times."""
    rng = np.random.default_rng(seed)
    return [[_make_record(rng) for _ in range(count)] for count in counts]


def make_tiny_config(model=None, **pretraining):
    """Return the configuration of a run of seconds: one layer, dropout on, intervals that do not divide each other."""
    shape = {"num_layers": 1, "hidden_dim": 16, "num_heads": 2, "intermediate_dim": 24, "max_positions": 16}
    settings = {
        "batch_size": 5,
        "total_steps": 12,
        "warmup_steps": 3,
        "learning_rate": 0.01,
        "log_every_steps": 3,
        "evaluate_every_steps": 6,
        "checkpoint_every_steps": 4,
        "evaluate_instances": 6,
    }
    values = {
        "model": {"size": "tiny"} | shape | (model or {}),
        "pretraining": settings | pretraining,
        "records": {"sequence_length": 16},
        "finetuning": {"sequence_length": 16},
    }
    return make_config(PipelineConfig, values, "tiny")


def _make_record(rng) -> bytes:
    first, second = rng.integers(2, 6, 2)
    words = rng.integers(5, VOCABULARY_SIZE, first + second)
    token_ids = np.concatenate([[CLS], words[:first], [SEP], words[first:], [SEP]])
    segment_ids = np.repeat([0, 1], [first + 2, second + 1])
    places = np.flatnonzero(token_ids > MASK)
    positions = np.sort(rng.choice(places, rng.integers(1, MAX_PREDICTIONS + 1), replace=False))
    mask_ids = token_ids[positions]
    token_ids[positions] = MASK
    return encode_record(
        token_ids=token_ids,
        segment_ids=segment_ids,
        mask_positions=positions,
        mask_ids=mask_ids,
        sentence_label=bool(rng.integers(2)),
        sequence_length=SEQUENCE_LENGTH,
        max_predictions=MAX_PREDICTIONS,
    )


def encode_record(
    token_ids, segment_ids, mask_positions, mask_ids, sentence_label, sequence_length, max_predictions
) -> bytes:
    """Serialise one masked instance without padding, each of its parts one-dimensional."""

    def pad(values, length):
        return np.pad(values, (0, length - len(values)))[None]

    (record,) = encode_records(
        token_ids=pad(token_ids, sequence_length),
        segment_ids=pad(segment_ids, sequence_length),
        lengths=np.array([len(token_ids)]),
        mask_positions=pad(mask_positions, max_predictions),
        mask_ids=pad(mask_ids, max_predictions),
        mask_counts=np.array([len(mask_ids)]),
        sentence_labels=np.array([sentence_label]),
    )
    return record
