"""Measure a corpus before its documents are used: how many distinct ones there are, and how much text."""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

import apache_beam as beam

from beam_jobs.spilling import SortThroughFiles
from beam_jobs.tokenizing import read_facts
from keras_bert_flow.text.documents import ID_BYTES

BUCKETS = 32  # into which documents are dealt by their ids
_BYTES = struct.Struct("<Q")  # of text, after the id


class MeasureCorpus(beam.PTransform):
    """Emit one (documents, bytes of text) for batches of packed documents.

    Copies of a document count once: they do not reach the records, and pools that were counted with them would hold
    too few documents to choose a random next segment from. The ids are sorted through files, 28 bytes for each
    document, so neither a worker nor the runner holds them.

    Args:
        folder: of the job, for the ids; every worker must reach it.
    """

    def __init__(self, folder: Path):
        super().__init__()
        self._folder = Path(folder) / "ids"

    def expand(self, batches):
        measured = batches | "MeasureDocuments" >> beam.FlatMap(measure_documents)
        buckets = batches.pipeline | "ListIdBuckets" >> beam.Create(range(BUCKETS))
        sizes = {"items": measured, "buckets": buckets} | "CountDistinct" >> SortThroughFiles(
            self._folder, count_distinct
        )
        return sizes | "AddSizes" >> beam.CombineGlobally(add_sizes)


def measure_documents(batch: list[bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the number of each bucket and its items: the id of a packed document and its bytes of text."""
    buckets: defaultdict[int, list[bytes]] = defaultdict(list)
    for packed in batch:
        text_bytes, _ = read_facts(packed)
        buckets[packed[0] % BUCKETS].append(packed[:ID_BYTES] + _BYTES.pack(text_bytes))
    yield from buckets.items()


def count_distinct(bucket: int, items: Iterator[bytes]) -> Iterator[tuple[int, int]]:
    """Yield (documents, bytes of text) of a bucket, each document once."""
    documents = text_bytes = 0
    last = b""
    for item in items:
        if item[:ID_BYTES] != last:
            last = item[:ID_BYTES]
            documents += 1
            text_bytes += _BYTES.unpack_from(item, ID_BYTES)[0]
    yield documents, text_bytes


def add_sizes(sizes: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Add up (documents, bytes of text)."""
    documents = text_bytes = 0
    for more_documents, more_bytes in sizes:
        documents += more_documents
        text_bytes += more_bytes
    return documents, text_bytes
