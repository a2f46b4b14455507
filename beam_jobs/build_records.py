"""Beam job that turns documents into masked pre-training records, in memory independent of the corpus size.

    text ──► documents as token ids ──► pools of documents ──► masked instances ──► records ──► sorted shards

A random next segment comes from a document of the same pool: documents are assigned to pools by the digest of their
text, so a pool is a random sample of the corpus. Data moves between the steps through an exchange (`exchange.py`), so
no worker ever holds more than a pool, or a part of a shard.
"""

import logging
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import apache_beam as beam

from beam_jobs.exchange import Exchange, Items, choose_exchange
from beam_jobs.instances import (
    HELD_OUT,
    MASKING,
    TOKENIZING,
    TRAIN,
    BuildRecords,
    CorpusSize,
    MeasureCorpus,
    PoolDocuments,
    RecordRule,
    TokenizeDocuments,
)
from beam_jobs.publishing import JobFolders, check_place_of, publish_result, read_published
from beam_jobs.reading import (
    COUNTERS,
    READING,
    ReadCorpus,
    WriteResults,
    name_inputs,
    read_results,
    tell_ignored,
    tell_rejected,
)
from beam_jobs.running import run_pipeline
from beam_jobs.storage import BeamStorage, fetched, new_place, put
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig
from keras_bert_flow.console.job_progress import JobPart, expect, note, plan_parts
from keras_bert_flow.files.inputs import hold
from keras_bert_flow.files.paths import check_local
from keras_bert_flow.records.tfrecord import INDEX_SUFFIX, TFRecordFile, name_record_file, write_tfrecords
from keras_bert_flow.results.manifest import FileSummary
from keras_bert_flow.results.publishing import Contents
from keras_bert_flow.results.stages.data import RECORDS, records_key, records_settings
from keras_bert_flow.results.stages.keys import corpus_digests, hold_corpus
from keras_bert_flow.text.corpus.lines import check_rejected, explain_lack
from keras_bert_flow.text.objectives.objective import check_joining, describe_mistaken, find_objective
from keras_bert_flow.text.rows import keyed_numbers
from keras_bert_flow.text.tokenizers.files import (
    copy_tokenizer,
    describe_rules,
    list_tokenizer_files,
    read_tokenizer_file,
)
from keras_bert_flow.text.tokenizers.tokenizer import describe_lost


def build_records(
    corpus: CorpusConfig,
    records: RecordsConfig,
    vocabulary_file: str | Path,
    cased: bool,
    output: str | Path,
    seed: int = 1,
    options: Sequence[str] = (),
) -> str | Path:
    """Publish a folder of TFRecord files with its tokenizer and a manifest, unless it already exists.

    The bytes depend only on the text, the vocabulary, the settings and the seed.

    Args:
        corpus: the text.
        records: objective, lengths, masks and shards.
        vocabulary_file: a vocab.txt, or a tokenizer.json.
        cased: whether a vocab.txt keeps case; a tokenizer.json says so itself.
        output: the folder.
        seed: seed of every random choice.
        options: Beam's options.
    Raises:
        FileNotFoundError: an input is missing.
        ValueError: the vocabulary or the corpus is unusable, or too much of its text was rejected; the message says
            why.
    """
    check_place_of(output)
    vocabulary_file = check_local(vocabulary_file, "The vocabulary")
    storage = BeamStorage(options)
    files, inputs = hold_corpus(corpus, storage)
    inputs |= hold(*list_tokenizer_files(vocabulary_file))
    tokenizer = read_tokenizer_file(vocabulary_file, cased)
    check_joining(records.objective, tokenizer)

    def build(folders: JobFolders) -> Contents:
        tell_ignored(corpus, storage)
        written, counters = _run(files, RecordRule(records, tokenizer, seed), folders, options)
        copy_tokenizer(vocabulary_file, cased, folders.work)
        facts = {"cased": tokenizer.cased, "seed": seed, "vocabulary_size": tokenizer.vocabulary_size}
        facts |= describe_rules(tokenizer)
        return Contents(records_settings(records) | facts, corpus_digests(files, storage), counters, written)

    key = records_key(files, records, vocabulary_file, cased, seed, storage)
    folder = publish_result(output, RECORDS, key, build, options, inputs)
    check_rejected(read_published(folder).counters, corpus.max_rejected_share)  # an old one may have a looser limit
    return folder


def _run(
    corpus: CorpusConfig, rule: RecordRule, folders: JobFolders, options: Sequence[str]
) -> tuple[list[FileSummary], dict[str, int]]:
    def build(pipeline: beam.Pipeline) -> None:
        exchange = choose_exchange(options, folders.scratch, folders.is_shared)
        read = pipeline | "ReadCorpus" >> ReadCorpus(corpus, exchange, BeamStorage(options))
        tokenize = TokenizeDocuments(rule.tokenizer, split_lines=corpus.lines == "paragraphs")
        tokenized = read.texts | "TokenizeDocuments" >> beam.ParDo(tokenize).with_outputs(COUNTERS, main="documents")
        size = tokenized.documents | "MeasureCorpus" >> MeasureCorpus(rule.config, exchange)
        kept = tokenized.documents | "KeepDocuments" >> exchange.spread("tokenized")
        pools = {"documents": kept, "size": size} | "PoolDocuments" >> PoolDocuments(rule, exchange)
        built = pools | "BuildRecords" >> beam.ParDo(BuildRecords(rule)).with_outputs(COUNTERS, main="records")
        plan = size | "PlanShards" >> beam.Map(plan_shards, rule.config, rule.tokenizer.vocabulary_size)
        files = {"records": built.records, "plan": plan} | "WriteShards" >> WriteShards(
            folders.place, rule.seed, exchange
        )
        counters = (read.counters, tokenized[COUNTERS], built[COUNTERS]) | "FlattenCounters" >> beam.Flatten()
        _ = {"results": files, COUNTERS: counters} | "WriteSummaries" >> WriteResults(folders.place)

    plan_parts(READING, TOKENIZING, MASKING, WRITING)
    run_pipeline(build, options, folders.scratch)
    results, counters = read_results(folders.place)
    counters = tell_rejected(counters, folders.work, corpus.max_rejected_share)
    objective = find_objective(rule.config.objective)
    if counters.get("documents_train", 0) < objective.needed_documents or not counters.get("instances_train"):
        facts, remedy = explain_lack(counters)
        raise ValueError(
            f"A corpus must hold {objective.needed}. "
            f"Received: {name_inputs(corpus.input)}, with {counters.get('documents_train', 0)} to train on and "
            f"{counters.get('documents_held_out', 0)} held out{facts and f'; {facts}'}. {remedy}"
        )
    for line in (*describe_lost(counters, "the corpus"), *describe_mistaken(objective, counters)):
        logging.getLogger("keras_bert_flow").warning("%s", line)
    return [FileSummary(*summary) for summary in results], counters


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
    """Plan the files for the records of a corpus: `config.shards`, or enough to keep each below SHARD_BYTES.

    The plan depends only on the documents and the arguments. It is made from an upper estimate of the size of the
    records, up to twice what is needed.
    """
    record_bytes = max_record_bytes(config, vocabulary_size)
    total_bytes = size.instances / 1000 * config.duplication * record_bytes
    shards = config.shards or max(MIN_SHARDS, math.ceil(total_bytes / (_AIMED_SHARE * SHARD_BYTES)))
    once = size.instances / 1000 * record_bytes
    parts, held_out_parts = (
        max(1, math.ceil(file_bytes / PART_BYTES))
        for file_bytes in (once * config.duplication / shards, once * config.held_out_fraction)
    )
    expect(WRITING.unit, shards * parts + held_out_parts)
    return ShardPlan(shards, parts, held_out_parts)


def max_record_bytes(config: RecordsConfig, vocabulary_size: int) -> int:
    """Return the maximum size in bytes of a record in a file, including its framing."""
    largest = (vocabulary_size - 1, config.sequence_length - 1)
    ids, positions = (max(1, -(-number.bit_length() // 7)) for number in largest)  # as varints, of 7 bits per byte
    per_token, per_prediction = ids + 2, ids + positions + 4  # the masks are 1 byte each, a weight is a float
    return _NAMES_BYTES + per_token * config.sequence_length + per_prediction * config.max_predictions


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
