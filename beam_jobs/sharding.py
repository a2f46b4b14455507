"""Write records into shards whose content and order depend on the records alone."""

import os
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from itertools import chain
from pathlib import Path

import apache_beam as beam

from beam_jobs.pairing import HELD_OUT, TRAIN
from keras_bert_flow.records.tfrecord import INDEX_SUFFIX, write_tfrecords
from keras_bert_flow.text.randomness import keyed_number


class WriteShards(beam.PTransform):
    """Write (part, records) pairs as sorted TFRecord files, and emit a summary of each file.

    A record's shard and its place there follow from a digest of its bytes: the order is a random one, and the same for
    every runner and number of workers. A retried shard writes the same bytes again.

    Args:
        folder: where the files go; every worker must reach it.
        shards: files for training; held-out records fill one.
        seed: of the order.
    """

    def __init__(self, folder: Path, shards: int, seed: int):
        super().__init__()
        self._folder = str(folder)
        self._shards = {TRAIN: shards, HELD_OUT: 1}
        self._seed = seed

    def expand(self, records: beam.PCollection) -> beam.PCollection:
        names = [name_shard(part, number, of) for part, of in self._shards.items() for number in range(of)]
        every_shard = records.pipeline | "ListShards" >> beam.Create([(name, []) for name in names])
        placed = records | "ChooseShards" >> beam.FlatMap(choose_shards, self._shards, self._seed)
        return (
            (placed, every_shard)
            | "FlattenShards" >> beam.Flatten()
            | "GroupShard" >> beam.GroupByKey()
            | "WriteShard" >> beam.FlatMap(write_shard, self._folder)
        )


def choose_shards(
    batch: tuple[str, list[bytes]], shards: dict[str, int], seed: int
) -> Iterator[tuple[str, list[tuple[int, bytes]]]]:
    """Deal a batch of records out to their shards, each record with its place in the order there."""
    part, records = batch
    dealt = defaultdict(list)
    for record in records:
        order = keyed_number(seed, "order", record) >> 1  # Beam's integers have a sign
        dealt[order % shards[part]].append((order, record))
    for shard, ordered in dealt.items():
        yield name_shard(part, shard, shards[part]), ordered


def name_shard(part: str, number: int, of: int) -> str:
    return f"{part}-{number:05d}-of-{of:05d}.tfrecord"


def write_shard(item: tuple[str, Iterable[list[tuple[int, bytes]]]], folder: str) -> Iterator[tuple]:
    """Write one shard and its index under their names in one step each; a shard may have no records."""
    name, batches = item
    ordered = sorted(chain.from_iterable(batches))
    attempt = Path(folder) / f".{uuid.uuid4().hex}"  # two attempts at one shard never write into one file
    attempt.mkdir()
    summaries = write_tfrecords(attempt / name, (record for _, record in ordered))
    for file in (name, name + INDEX_SUFFIX):
        os.replace(attempt / file, Path(folder) / file)
    attempt.rmdir()
    yield from map(astuple, summaries)
