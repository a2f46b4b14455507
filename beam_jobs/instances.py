"""From documents to records of masked instances: tokenize them, measure the corpus, pool documents, and mask."""

import struct
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

import apache_beam as beam
import numpy as np
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.exchange import Exchange
from beam_jobs.reading import CountingDoFn, Texts
from keras_bert_flow.config.text import RecordsConfig
from keras_bert_flow.console.job_progress import DOCUMENTS, JobPart, note
from keras_bert_flow.records.example import encode_records
from keras_bert_flow.text.corpus.documents import ID_BYTES, make_document
from keras_bert_flow.text.masking import MaskingRule
from keras_bert_flow.text.objectives.mlm import estimate_packed
from keras_bert_flow.text.objectives.objective import (
    ROWS,
    Estimate,
    InstanceRule,
    Instances,
    build_instances,
    find_objective,
)
from keras_bert_flow.text.rows import TokenizedDocument, held_out_choice, keyed_numbers
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer, count_characters, count_stripped, count_unknown

TOKENIZING = JobPart("tokenizing", DOCUMENTS)
# A packed document is its id, the bytes of its text and the number of its sentences, the length of each sentence, and
# the token ids; the last two int32.
_FACTS = struct.Struct("<QI")
_HEADER = struct.Struct(f"<{ID_BYTES}sQI")
_ID = np.dtype(np.int32)


class TokenizeDocuments(CountingDoFn):
    """Tokenize batches of documents and emit batches of packed ones.

    Sentences without tokens, and documents without sentences, are dropped.

    Args:
        tokenizer: encodes the sentences.
        split_lines: whether a line is a paragraph to be split into sentences, rather than one sentence.
    """

    def __init__(self, tokenizer: Tokenizer, split_lines: bool):
        self._tokenizer = tokenizer  # sent to workers only with this step: it is the largest object
        self._split_lines = split_lines

    def process(self, texts: Texts) -> Iterator[list[bytes]]:
        batch, unk_id, counts = [], self._tokenizer.unk_id, self.counts
        strips = self._tokenizer.strips_accents
        for lines in texts:
            document = make_document(lines, self._split_lines)
            token_ids, lengths = array("i"), array("i")
            for sentence in document.sentences:
                text = f" {sentence}" if token_ids else sentence  # as in running text: a space may be part of a piece
                if length := self._tokenizer.encode_into(token_ids, text):
                    lengths.append(length)
                    if unk_id in token_ids[-length:]:
                        counts.update(count_unknown(self._tokenizer, text))
                counts["characters"] += count_characters(sentence)
                if strips and not sentence.isascii():
                    counts["stripped_characters"] += count_stripped(sentence)
            if not lengths:
                counts["documents_without_tokens"] += 1
                continue
            text_bytes = sum(len(text) if text.isascii() else len(text.encode()) for text in document.sentences)
            batch.append(pack_document(document.id, text_bytes, lengths, token_ids))
            counts["sentences"] += len(lengths)
            counts["tokens"] += len(token_ids)
            counts["unknown_tokens"] += token_ids.count(unk_id)
            counts["documents_of_one_sentence"] += len(lengths) == 1
        note(TOKENIZING, len(texts))
        if batch:
            yield batch


def pack_document(document_id: str, text_bytes: int, lengths: array, token_ids: array) -> bytes:
    """Pack a document.

    Args:
        document_id: digest of its text.
        text_bytes: size of its text in bytes.
        lengths: int32, (sentences,). Number of tokens per sentence.
        token_ids: int32, (tokens,).
    """
    return _HEADER.pack(bytes.fromhex(document_id), text_bytes, len(lengths)) + lengths.tobytes() + token_ids.tobytes()


def unpack_document(name: bytes, rest: bytes) -> TokenizedDocument:
    """Return a document from its id and the rest of its packed form."""
    _, sentences = _FACTS.unpack_from(rest)
    numbers = np.frombuffer(rest, _ID, offset=_FACTS.size)
    return TokenizedDocument(name.hex(), numbers[sentences:], numbers[:sentences])


# Measure a corpus before its documents are used: number of distinct documents, size, and estimated instances.

BUCKETS = 32  # over which documents are distributed by the first byte of their ids
_SIZES = struct.Struct("<QQ")  # bytes of text and thousandths of an instance, after the id


class CorpusSize(NamedTuple):
    """The size of a corpus, counting copies of a document once.

    Attributes:
        documents: number of documents with at least one token.
        text_bytes: bytes of their sentences.
        instances: upper estimate of the instances from one pass over them, in thousandths.
    """

    documents: int
    text_bytes: int
    instances: int


class MeasureCorpus(beam.PTransform):
    """Emit one CorpusSize for batches of packed documents.

    Copies of a document count once: they do not reach the records, and counting them would make pools with too few
    documents to choose a random next segment from. The ids are sorted, with 36 bytes per document.

    Args:
        config: the objective and the lengths.
        exchange: moves the ids.
    """

    def __init__(self, config: RecordsConfig, exchange: Exchange):
        super().__init__()
        if config.packing:
            self._estimate = estimate_packed(config.sequence_length)
        else:
            objective = find_objective(config.objective)
            self._estimate = objective.estimate_instances(config.sequence_length, config.short_fraction)
        self._exchange = exchange

    def expand(self, batches):
        measured = batches | "MeasureDocuments" >> beam.FlatMap(measure_documents, self._estimate)
        buckets = batches.pipeline | "ListIdBuckets" >> beam.Create(range(BUCKETS))
        count = self._exchange.sort("ids", count_distinct, divide=find_id_group)
        sizes = {"items": measured, "buckets": buckets} | "CountDistinct" >> count
        return sizes | "AddSizes" >> beam.CombineGlobally(add_sizes)


def measure_documents(batch: list[bytes], estimate: Estimate) -> Iterator[tuple[int, list[bytes]]]:
    """Yield each bucket number and its items: the id of a packed document, and its size."""
    buckets: defaultdict[int, list[bytes]] = defaultdict(list)
    for packed in batch:
        text_bytes, sentences = _FACTS.unpack_from(packed, ID_BYTES)
        tokens = (len(packed) - _HEADER.size) // _ID.itemsize - sentences
        facts = _SIZES.pack(text_bytes, estimate(sentences, tokens))
        buckets[packed[0] % BUCKETS].append(packed[:ID_BYTES] + facts)
    yield from buckets.items()


def find_id_group(bucket: int, item: bytes) -> bytes:
    """Return the group of an id in its bucket: the second byte."""
    return item[1:2]


def count_distinct(bucket: int, items: Iterator[bytes]) -> Iterator[CorpusSize]:
    """Yield the size of a bucket or of a group of it, counting each document once."""
    documents = text_bytes = instances = 0
    last = b""
    for item in items:
        if item[:ID_BYTES] != last:
            last = item[:ID_BYTES]
            more_bytes, more_instances = _SIZES.unpack_from(item, ID_BYTES)
            documents += 1
            text_bytes += more_bytes
            instances += more_instances
    yield CorpusSize(documents, text_bytes, instances)


def add_sizes(sizes: Iterable[CorpusSize]) -> CorpusSize:
    """Return the sum of sizes."""
    return CorpusSize(*map(sum, zip(CorpusSize(0, 0, 0), *sizes, strict=True)))


# Pool documents that may be paired with each other, and make masked instances of each pool.

MASKING = JobPart("masking", DOCUMENTS)
DOCUMENTS_A_POOL = 64  # enough for a random choice of a document, few enough to hold in memory
# A pool whose texts share rows, of which the last is not full, has more short documents: about a megabyte, at most.
PACKED_DOCUMENTS, PACKED_BYTES = 1024, 1_000_000
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
        self._is_packed = rule.config.packing
        self._exchange = exchange

    def expand(self, inputs):  # a dict of collections, for which Beam has no type hint
        size = beam.pvalue.AsSingleton(inputs["size"])
        choice = (self._held_out_fraction, self._seed, self._is_packed)
        placed = inputs["documents"] | "ChoosePools" >> beam.FlatMap(place_documents, size, *choice)
        buckets = inputs["size"] | "ListBuckets" >> beam.FlatMap(lambda size: range(_count_buckets(size)))
        sort = self._exchange.sort("pools", read_pools, divide=find_pool)
        return {"items": placed, "buckets": buckets} | "SortPools" >> sort


def place_documents(
    batch: list[bytes], size: CorpusSize, held_out_fraction: float, seed: int, is_packed: bool = False
) -> Iterator[tuple[int, list[bytes]]]:
    """Assign packed documents to pools; yield each bucket of pools with its items: a pool's name and a document.

    Args:
        batch: packed documents.
        size: of the corpus.
        held_out_fraction: fraction of its documents to hold out.
        seed: seed of the choice of a document's part, training or held out, and of its pool there.
        is_packed: whether its texts share rows.
    """
    is_held_out, pool_number = held_out_choice(held_out_fraction, seed), keyed_numbers(seed, "pool")
    shares, pool_size = (1 - held_out_fraction, held_out_fraction), DOCUMENTS_A_POOL
    if is_packed:
        a_megabyte = PACKED_BYTES * size.documents // max(1, size.text_bytes)
        pool_size = min(PACKED_DOCUMENTS, max(pool_size, a_megabyte))
    pools = [max(1, int(size.documents * share) // pool_size) for share in shares]  # to train on, held out
    buckets = _count_buckets(size)
    placed: defaultdict[int, list[bytes]] = defaultdict(list)
    for packed in batch:
        document_id = packed[:ID_BYTES].hex()
        held_out = is_held_out(document_id)
        pool = pool_number(document_id.encode()) % pools[held_out]
        placed[pool % buckets].append(_POOL.pack(held_out, pool) + packed)
    yield from placed.items()


def find_pool(bucket: int, item: bytes) -> bytes:
    """Return the pool of a document, as its group in the bucket."""
    return item[: _POOL.size]


def read_pools(bucket: int, items: Iterator[bytes]) -> Iterator[DocumentPool]:
    """Yield the pools of a bucket, or of a group of it, one at a time; copies of a document are kept once."""
    for pool, group in groupby(items, key=lambda item: item[: _POOL.size]):
        documents: list[TokenizedDocument] = []
        name, copies = b"", 0
        for item in group:
            if item[_POOL.size : _NAMED] == name:
                copies += 1
            else:
                name = item[_POOL.size : _NAMED]
                documents.append(unpack_document(name, item[_NAMED:]))
        yield HELD_OUT if _POOL.unpack(pool)[0] else TRAIN, documents, copies


def _count_buckets(size: CorpusSize) -> int:
    """Return the number of buckets that distribute pools over workers; the records do not depend on it."""
    return min(_MAX_BUCKETS, max(_MIN_BUCKETS, size.text_bytes // _BUCKET_BYTES))


class BuildRecords(CountingDoFn):
    """Emit (part, records) for the instances of pools, using held-out documents once and others `duplication` times.

    Records are encoded and emitted in batches, across small pools: emitting them one by one would cost more than making
    them.
    """

    def __init__(self, rule: RecordRule):
        config, tokenizer = rule.config, rule.tokenizer
        self._config, self._seed = config, rule.seed
        self._instances = InstanceRule(
            objective=config.objective,
            sequence_length=config.sequence_length,
            short_fraction=config.short_fraction,
            cls_id=tokenizer.cls_id,
            sep_id=tokenizer.sep_id,
            masking=MaskingRule.of(tokenizer, config.masked_fraction, config.max_predictions, config.mask_unit),
            packing=config.packing,
        )

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
    rows, masked = [instances.rows for instances in built], [instances.masked for instances in built]
    spans = [instances.span_ids for instances in built if instances.span_ids is not None]  # of all, or of none
    numbers = [part.text_numbers for part in rows if part.text_numbers is not None]  # likewise
    return encode_records(
        token_ids=np.concatenate([part.token_ids for part in masked]),
        segment_ids=np.concatenate([part.segment_ids for part in rows]),
        lengths=np.concatenate([part.lengths for part in rows]),
        mask_positions=np.concatenate([part.positions for part in masked]),
        mask_ids=np.concatenate([part.mask_ids for part in masked]),
        mask_counts=np.concatenate([part.counts for part in masked]),
        sentence_labels=np.concatenate([part.sentence_labels for part in rows]),
        span_ids=np.concatenate(spans) if spans else None,
        text_numbers=np.concatenate(numbers) if numbers else None,
    )
