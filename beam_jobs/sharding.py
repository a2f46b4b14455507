"""Write records into shards whose content and order depend on the records alone."""

import math
import os
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from pathlib import Path

import apache_beam as beam

from beam_jobs.measuring import CorpusSize
from beam_jobs.pairing import HELD_OUT, TRAIN
from beam_jobs.spilling import SortThroughFiles
from keras_bert_flow.config.records import RecordsConfig
from keras_bert_flow.records.tfrecord import INDEX_SUFFIX, write_tfrecords
from keras_bert_flow.text.randomness import keyed_numbers

SHARD_BYTES = 256_000_000  # a training file stays below
MIN_SHARDS = 4
_AIMED_SHARE = 0.97  # of that; records are dealt at random, and of 300,000 to a file the standard deviation is 0.2 %
_NAMES_BYTES = 256  # of a record's features, their lengths, the label and the framing
_ORDER_BYTES = 8  # in front of a record on its way: its place in the shard


class WriteShards(beam.PTransform):
    """Write (part, records) pairs as sorted TFRecord files, and emit a summary of each file.

    Takes a dict of collections: `records`, and `shards`, the one number of files for training; held-out records fill
    one file. A record's shard and its place there follow from a digest of its bytes: the order is a random one, and the
    same for every runner and number of workers. A retried shard writes the same bytes again.

    Args:
        folder: where the files go; every worker must reach it.
        seed: of the order.
    """

    def __init__(self, folder: Path, seed: int):
        super().__init__()
        self._folder = str(folder)
        self._seed = seed

    def expand(self, inputs):  # a dict of collections, for which Beam has no type hint
        shards = beam.pvalue.AsSingleton(inputs["shards"])
        placed = inputs["records"] | "DealRecords" >> beam.FlatMap(deal_records, shards, self._seed)
        every_shard = inputs["shards"] | "ListShards" >> beam.FlatMap(lambda shards: range(shards + 1))
        runs = Path(self._folder) / "records"
        sort = SortThroughFiles(runs, write_numbered_shard, shards, self._folder)
        return {"items": placed, "buckets": every_shard} | "SortShards" >> sort


def choose_shards(size: CorpusSize, config: RecordsConfig, vocabulary_size: int) -> int:
    """Return the number of files for training: `config.shards`, or enough to keep each below SHARD_BYTES.

    The number depends on the documents and the arguments alone. It is an upper estimate, by up to two times.
    """
    if config.shards:
        return config.shards
    instances = size.instances / 1000 * config.duplication
    total_bytes = instances * max_record_bytes(config, vocabulary_size)
    return max(MIN_SHARDS, math.ceil(total_bytes / (_AIMED_SHARE * SHARD_BYTES)))


def max_record_bytes(config: RecordsConfig, vocabulary_size: int) -> int:
    """Return the most bytes that a record takes in a file, its framing included."""
    ids, positions = _varint_bytes(vocabulary_size - 1), _varint_bytes(config.sequence_length - 1)
    per_token, per_prediction = ids + 2, ids + positions + 4  # the masks are 1 byte each, a weight is a float
    return _NAMES_BYTES + per_token * config.sequence_length + per_prediction * config.max_predictions


def _varint_bytes(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))


def deal_records(batch: tuple[str, list[bytes]], shards: int, seed: int) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the number of each shard, of which the last is the held-out one, and its records of a batch, each of them
    behind its place in the order."""
    part, records = batch
    dealt = defaultdict(list)
    find_order = keyed_numbers(seed, "order")
    for record in records:
        order = find_order(record)
        dealt[order % shards if part == TRAIN else shards].append(order.to_bytes(_ORDER_BYTES, "big") + record)
    yield from dealt.items()


def name_shard(part: str, number: int, of: int) -> str:
    return f"{part}-{number:05d}-of-{of:05d}.tfrecord"


def write_numbered_shard(number: int, ordered: Iterator[bytes], shards: int, folder: str) -> Iterator[tuple]:
    name = name_shard(TRAIN, number, shards) if number < shards else name_shard(HELD_OUT, 0, 1)
    yield from write_shard((name, ordered), folder)


def write_shard(item: tuple[str, Iterable[bytes]], folder: str) -> Iterator[tuple]:
    """Write one shard, records behind their orders and sorted, and its index under their names in one step each."""
    name, ordered = item
    attempt = Path(folder) / f".{uuid.uuid4().hex}"  # two attempts at one shard never write into one file
    attempt.mkdir()
    summaries = write_tfrecords(attempt / name, (item[_ORDER_BYTES:] for item in ordered))
    for file in (name, name + INDEX_SUFFIX):
        os.replace(attempt / file, Path(folder) / file)
    attempt.rmdir()
    yield from map(astuple, summaries)
