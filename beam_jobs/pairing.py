"""From token ids to files of records: pool documents, make masked instances, and write shards."""

import math
import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import chain
from typing import NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.exchange.exchange import Exchange, Items
from beam_jobs.reading import CountingDoFn
from beam_jobs.storage import fetched, new_place, put
from beam_jobs.tokenizing import CorpusSize, unpack_document
from keras_bert_flow.config.text import RecordsConfig
from keras_bert_flow.console.job_progress import DOCUMENTS, JobPart, expect, note
from keras_bert_flow.records.example import encode_records
from keras_bert_flow.records.tfrecord import INDEX_SUFFIX, TFRecordFile, name_record_file, write_tfrecords
from keras_bert_flow.text.corpus.documents import ID_BYTES
from keras_bert_flow.text.masking import MaskingRule
from keras_bert_flow.text.objectives.objective import ROWS, InstanceRule, Instances, build_instances, find_objective
from keras_bert_flow.text.rows import TokenizedDocument, held_out_choice, keyed_numbers
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

MASKING = JobPart("masking", DOCUMENTS)
DOCUMENTS_A_POOL = 64  # enough for a random choice of a document, few enough to hold in memory
TRAIN, HELD_OUT = "train", "held_out"
# TRAIN or HELD_OUT; distinct documents, ordered by id; the number of additional copies
DocumentPool = tuple[str, list[TokenizedDocument], int]
_POOL = struct.Struct(">BQ")  # held out or not, and the number of the pool
_NAMED = _POOL.size + ID_BYTES
_MIN_BUCKETS, _BUCKET_BYTES = 32, 16_000_000  # of text
_MAX_BUCKETS = 1000  # each is read from every sorted run


@dataclass(frozen=True)
class RecordRule:
    """What determines the records: the settings, the tokenizer, and the seed of every random choice."""

    config: RecordsConfig
    tokenizer: Tokenizer
    seed: int

    @property
    def instances(self) -> InstanceRule:
        config, tokenizer = self.config, self.tokenizer
        return InstanceRule(
            objective=config.objective,
            sequence_length=config.sequence_length,
            short_fraction=config.short_fraction,
            cls_id=tokenizer.cls_id,
            sep_id=tokenizer.sep_id,
            masking=MaskingRule.of(tokenizer, config.masked_fraction, config.max_predictions, config.mask_unit),
        )


class PoolDocuments(beam.PTransform):
    """Group documents into pools of about DOCUMENTS_A_POOL, with training and held-out documents in separate pools.

    Takes a dict of collections: `documents`, and `size`, with one CorpusSize. Emits one DocumentPool per pool. Which
    documents share a pool depends on their text, the number of distinct documents and the seed.

    Args:
        rule: the settings and the seed.
        exchange: moves the documents.
    """

    def __init__(self, rule: RecordRule, exchange: Exchange):
        super().__init__()
        self._held_out_fraction, self._seed = rule.config.held_out_fraction, rule.seed
        self._exchange = exchange

    def expand(self, inputs):  # a dict of collections, for which Beam has no type hint
        size = beam.pvalue.AsSingleton(inputs["size"])
        choice = (self._held_out_fraction, self._seed)
        placed = inputs["documents"] | "ChoosePools" >> beam.FlatMap(place_documents, size, *choice)
        buckets = inputs["size"] | "ListBuckets" >> beam.FlatMap(lambda size: range(_count_buckets(size)))
        sort = self._exchange.sort("pools", read_pools, divide=find_pool)
        return {"items": placed, "buckets": buckets} | "SortPools" >> sort


def place_documents(
    batch: list[bytes], size: CorpusSize, held_out_fraction: float, seed: int
) -> Iterator[tuple[int, list[bytes]]]:
    """Assign packed documents to pools; yield each bucket of pools with its items: a pool's name and a document."""
    choose, buckets = PoolChoice(size.documents, held_out_fraction, seed), _count_buckets(size)
    placed: defaultdict[int, list[bytes]] = defaultdict(list)
    for packed in batch:
        part, pool = choose(packed[:ID_BYTES].hex())
        placed[pool % buckets].append(_POOL.pack(part == HELD_OUT, pool) + packed)
    yield from placed.items()


def find_pool(bucket: int, item: bytes) -> bytes:
    """Return the pool of a document, as its group in the bucket."""
    return item[: _POOL.size]


def read_pools(bucket: int, items: Iterator[bytes]) -> Iterator[DocumentPool]:
    """Yield the pools of a bucket, or of a group of it, one at a time; copies of a document are kept once."""
    documents: list[TokenizedDocument] = []
    pool, name, copies = b"", b"", 0
    for item in items:
        if item[: _POOL.size] != pool:
            if documents:
                yield _part_of(pool), documents, copies
            pool, name, documents, copies = item[: _POOL.size], b"", [], 0
        if item[_POOL.size : _NAMED] == name:
            copies += 1
        else:
            name = item[_POOL.size : _NAMED]
            documents.append(unpack_document(name, item[_NAMED:]))
    if documents:
        yield _part_of(pool), documents, copies


def _part_of(pool: bytes) -> str:
    return HELD_OUT if _POOL.unpack(pool)[0] else TRAIN


def _count_buckets(size: CorpusSize) -> int:
    """Return the number of buckets that distribute pools over workers; the records do not depend on it."""
    return min(_MAX_BUCKETS, max(_MIN_BUCKETS, size.text_bytes // _BUCKET_BYTES))


class PoolChoice:
    """Choose the part of a document, training or held out, and the number of its pool.

    Args:
        total: number of distinct documents.
        held_out_fraction: fraction of them to hold out.
        seed: seed of the choice.
    """

    def __init__(self, total: int, held_out_fraction: float, seed: int):
        self._is_held_out, self._pool_number = held_out_choice(held_out_fraction, seed), keyed_numbers(seed, "pool")
        shares = {HELD_OUT: held_out_fraction, TRAIN: 1 - held_out_fraction}
        self._pools = {part: max(1, int(total * share) // DOCUMENTS_A_POOL) for part, share in shares.items()}

    def __call__(self, document_id: str) -> tuple[str, int]:
        part = HELD_OUT if self._is_held_out(document_id) else TRAIN
        return part, self._pool_number(document_id.encode()) % self._pools[part]


class BuildRecords(CountingDoFn):
    """Emit (part, records) for the instances of pools, using held-out documents once and others `duplication` times.

    Records are encoded and emitted in batches, across small pools: emitting them one by one would cost more than making
    them.
    """

    def __init__(self, rule: RecordRule):
        self._config, self._instances, self._seed = rule.config, rule.instances, rule.seed

    def start_bundle(self) -> None:
        super().start_bundle()
        self._built: defaultdict[str, list[Instances]] = defaultdict(list)

    def process(self, pool: DocumentPool) -> Iterator[tuple[str, list[bytes]]]:
        part, documents, copies = pool
        self.counts.update({"duplicate_documents": copies, f"documents_{part}": len(documents)})
        passes = self._config.duplication if part == TRAIN else 1
        for instances in build_instances(documents, passes, self._instances, self._seed):
            self._count(instances, part)
            self._built[part].append(instances)
            if sum(len(built.rows.lengths) for built in self._built[part]) >= ROWS:
                yield part, _encode(self._built.pop(part))
        note(MASKING, len(documents) + copies)

    def finish_bundle(self) -> Iterator[WindowedValue | beam.pvalue.TaggedOutput]:
        for part, built in self._built.items():
            yield GlobalWindows.windowed_value((part, _encode(built)))
        yield from super().finish_bundle()

    def _count(self, instances: Instances, part: str) -> None:
        counts, rows = self.counts, instances.rows
        tokens = int(rows.lengths.sum())
        counts[f"instances_{part}"] += len(rows.lengths)
        counts["positions"] += rows.token_ids.size
        counts["padding_positions"] += rows.token_ids.size - tokens
        counts["instance_tokens"] += tokens
        counts["masked_tokens"] += int(instances.masked.counts.sum())
        if label := find_objective(self._config.objective).sentence_label:
            counts[label.counter] += int(np.count_nonzero(rows.sentence_labels))
            if label.mistaken:
                counts[label.mistaken] += rows.mistaken_labels


def _encode(built: Sequence[Instances]) -> list[bytes]:
    def join(read: Callable[[Instances], np.ndarray]) -> np.ndarray:
        return np.concatenate([read(instances) for instances in built])

    return encode_records(
        token_ids=join(lambda instances: instances.masked.token_ids),
        segment_ids=join(lambda instances: instances.rows.segment_ids),
        lengths=join(lambda instances: instances.rows.lengths),
        mask_positions=join(lambda instances: instances.masked.positions),
        mask_ids=join(lambda instances: instances.masked.mask_ids),
        mask_counts=join(lambda instances: instances.masked.counts),
        sentence_labels=join(lambda instances: instances.rows.sentence_labels),
    )


# Write records to TFRecord shards whose content and order depend only on the records.

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
