"""Measure a corpus before its documents are used: number of distinct documents, size, and estimated instances."""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import apache_beam as beam

from beam_jobs.exchange.exchange import Exchange
from beam_jobs.tokenizing import read_facts
from keras_bert_flow.config.text import RecordsConfig
from keras_bert_flow.text.corpus.documents import ID_BYTES
from keras_bert_flow.text.objectives.objective import Estimate, find_objective

BUCKETS = 32  # over which documents are distributed by the first byte of their ids
_FACTS = struct.Struct("<QQ")  # bytes of text and thousandths of an instance, after the id


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
        self._estimate = find_objective(config.objective).estimate_instances(
            config.sequence_length, config.short_fraction
        )
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
        text_bytes, sentences, tokens = read_facts(packed)
        facts = _FACTS.pack(text_bytes, estimate(sentences, tokens))
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
            more_bytes, more_instances = _FACTS.unpack_from(item, ID_BYTES)
            documents += 1
            text_bytes += more_bytes
            instances += more_instances
    yield CorpusSize(documents, text_bytes, instances)


def add_sizes(sizes: Iterable[CorpusSize]) -> CorpusSize:
    """Return the sum of sizes."""
    return CorpusSize(*map(sum, zip(CorpusSize(0, 0, 0), *sizes, strict=True)))
