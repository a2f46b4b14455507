"""The steps from token ids to records: pool documents, and make masked instances."""

import struct
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.exchange.exchange import Exchange
from beam_jobs.measuring import CorpusSize
from beam_jobs.results import CountingDoFn
from beam_jobs.tokenizing import unpack_document
from keras_bert_flow.config.records import RecordsConfig
from keras_bert_flow.job_progress import DOCUMENTS, JobPart, note
from keras_bert_flow.records.schema import encode_records
from keras_bert_flow.text.corpus.documents import ID_BYTES
from keras_bert_flow.text.masking import MaskingRule
from keras_bert_flow.text.objectives.instances import Instances, build_instances
from keras_bert_flow.text.objectives.objective import ROWS, InstanceRule
from keras_bert_flow.text.objectives.registry import find_objective
from keras_bert_flow.text.pool import TokenizedDocument, held_out_choice
from keras_bert_flow.text.randomness import keyed_numbers
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
