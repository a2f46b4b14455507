"""Write records to TFRecord shards whose content and order depend only on the records."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from itertools import chain
from typing import NamedTuple

import apache_beam as beam

from beam_jobs.exchange.exchange import Exchange, Items
from beam_jobs.measuring import CorpusSize
from beam_jobs.pairing import HELD_OUT, TRAIN
from beam_jobs.places import fetched, new_place, put
from keras_bert_flow.config.records import RecordsConfig
from keras_bert_flow.job_progress import JobPart, expect, note
from keras_bert_flow.records.tfrecord import INDEX_SUFFIX, TFRecordFile, name_record_file, write_tfrecords
from keras_bert_flow.text.randomness import keyed_numbers

WRITING = JobPart("writing", "files")
SHARD_BYTES = 256_000_000  # upper limit of the size of a training file
MIN_SHARDS = 4
_AIMED_SHARE = 0.97  # of that; random assignment of 300,000 records per file has a standard deviation of 0.2 %
_NAMES_BYTES = 256  # of a record's feature names, their lengths, the label and the framing
_ORDER_BYTES = 8  # before a record in an exchange: its position in the shard
PART_BYTES = 64_000_000  # of a shard that a worker may have to sort in memory
# Position of its first record in the shard, folder, and the summaries of its two files from `write_tfrecords`
Part = tuple[bytes, str, list[tuple]]


class ShardPlan(NamedTuple):
    """The number of training files, and the number of parts of a file that each fit a worker's memory.

    Attributes:
        shards: number of training files.
        parts: number of parts of a training file.
        held_out_parts: number of parts of the file of held-out records.
    """

    shards: int
    parts: int
    held_out_parts: int


class WriteShards(beam.PTransform):
    """Write (part, records) pairs as sorted TFRecord files, and emit a summary of each file.

    Takes a dict of collections: `records`, and `plan`, with one ShardPlan; held-out records fill one file. A digest of
    a record's bytes determines its shard and its position there: the order is random, and the same for every runner and
    number of workers. A retried shard has the same bytes.

    Args:
        folder: output folder, possibly in an object store; every worker must reach it.
        seed: seed of the order.
        exchange: moves the records.
    """

    def __init__(self, folder: str, seed: int, exchange: Exchange):
        super().__init__()
        self._folder, self._seed, self._exchange = folder, seed, exchange

    def expand(self, inputs):  # a dict of collections, for which Beam has no type hint
        plan = beam.pvalue.AsSingleton(inputs["plan"])
        placed = inputs["records"] | "DealRecords" >> beam.FlatMap(deal_records, plan, self._seed)
        every_shard = inputs["plan"] | "ListShards" >> beam.FlatMap(lambda plan: range(plan.shards + 1))
        write = self._exchange.sort("records", write_part, plan, self._folder, divide=find_part)
        parts = {"items": placed, "buckets": every_shard} | "WriteParts" >> write
        return parts | "GroupParts" >> beam.GroupByKey() | "JoinParts" >> beam.FlatMap(join_parts, plan, self._folder)


def plan_shards(size: CorpusSize, config: RecordsConfig, vocabulary_size: int) -> ShardPlan:
    """Plan the files for the records of a corpus, from an upper estimate of their size."""
    shards = choose_shards(size, config, vocabulary_size)
    once = size.instances / 1000 * max_record_bytes(config, vocabulary_size)
    parts, held_out_parts = (
        max(1, math.ceil(file_bytes / PART_BYTES))
        for file_bytes in (once * config.duplication / shards, once * config.held_out_fraction)
    )
    expect(WRITING.unit, shards * parts + held_out_parts)
    return ShardPlan(shards, parts, held_out_parts)


def choose_shards(size: CorpusSize, config: RecordsConfig, vocabulary_size: int) -> int:
    """Return the number of training files: `config.shards`, or enough to keep each below SHARD_BYTES.

    The number depends only on the documents and the arguments. It is an upper estimate, up to twice what is needed.
    """
    if config.shards:
        return config.shards
    instances = size.instances / 1000 * config.duplication
    total_bytes = instances * max_record_bytes(config, vocabulary_size)
    return max(MIN_SHARDS, math.ceil(total_bytes / (_AIMED_SHARE * SHARD_BYTES)))


def max_record_bytes(config: RecordsConfig, vocabulary_size: int) -> int:
    """Return the maximum size in bytes of a record in a file, including its framing."""
    ids, positions = _varint_bytes(vocabulary_size - 1), _varint_bytes(config.sequence_length - 1)
    per_token, per_prediction = ids + 2, ids + positions + 4  # the masks are 1 byte each, a weight is a float
    return _NAMES_BYTES + per_token * config.sequence_length + per_prediction * config.max_predictions


def _varint_bytes(number: int) -> int:
    return max(1, -(-number.bit_length() // 7))


def deal_records(batch: tuple[str, list[bytes]], plan: ShardPlan, seed: int) -> Iterator[Items]:
    """Assign a batch of records to shards, of which the last is the held-out one.

    Yields:
        The number of a shard, and its records, each prefixed by its position in the order.
    """
    part, records = batch
    dealt = defaultdict(list)
    find_order = keyed_numbers(seed, "order")
    for record in records:
        order = find_order(record)
        dealt[order % plan.shards if part == TRAIN else plan.shards].append(
            order.to_bytes(_ORDER_BYTES, "big") + record
        )
    yield from dealt.items()


def find_part(number: int, item: bytes, plan: ShardPlan, folder: str) -> bytes:
    """Return the part of a record in its shard, by its position in the order."""
    parts = plan.parts if number < plan.shards else plan.held_out_parts
    return (int.from_bytes(item[:_ORDER_BYTES], "big") * parts >> 8 * _ORDER_BYTES).to_bytes(_ORDER_BYTES, "big")


def name_shard(number: int, plan: ShardPlan) -> str:
    if number < plan.shards:
        return name_record_file(TRAIN, number, plan.shards)
    return name_record_file(HELD_OUT, 0, 1)


def write_part(number: int, ordered: Iterator[bytes], plan: ShardPlan, folder: str) -> Iterator[tuple[int, Part]]:
    """Write a part of a shard, or all of it, from sorted records prefixed by their positions."""
    first = next(ordered, b"")
    records = (item[_ORDER_BYTES:] for item in chain([first] if first else [], ordered))
    with new_place(folder) as (local, place):
        summaries = write_tfrecords(local / name_shard(number, plan), records)
    note(WRITING)
    yield number, (first[:_ORDER_BYTES], place, list(map(astuple, summaries)))


def join_parts(shard: tuple[int, Iterable[Part]], plan: ShardPlan, folder: str) -> Iterator[tuple]:
    """Give a shard and its index their final names, atomically each; yield their summaries.

    The parts are kept, since the step may be retried.
    """
    number, parts = shard[0], sorted(shard[1])
    name, filled = name_shard(number, plan), [part for part in parts if part[0]] or parts[:1]
    _, place, summaries = filled[0]
    if len(filled) > 1:
        with new_place(folder) as (local, place):
            records = chain.from_iterable(_read_part(part, name) for _, part, _ in filled)
            summaries = list(map(astuple, write_tfrecords(local / name, records)))
    put({f"{place}/{file}": f"{folder}/{file}" for file in (name, name + INDEX_SUFFIX)})
    yield from summaries


def _read_part(place: str, name: str) -> Iterator[bytes]:
    with fetched(place, name, name + INDEX_SUFFIX) as folder:
        file = TFRecordFile(folder / name, mapped=False)
        yield from (file[number] for number in range(len(file)))  # mapped, pages of several parts would stay resident
