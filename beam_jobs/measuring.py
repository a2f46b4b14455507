"""Measure a corpus before its documents are used: how many distinct ones there are, and how much text."""

import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import apache_beam as beam

from beam_jobs.spilling import SortThroughFiles, group_sorted
from keras_bert_flow.text.documents import ID_BYTES, Document
from keras_bert_flow.text.normalization import normalize_text

BUCKETS = 32  # into which documents are dealt by their ids
_BYTES = struct.Struct(">Q")  # of text, after the id


class MeasureCorpus(beam.PTransform):
    """Emit one (documents, bytes of text) for a collection of documents, as they are read.

    Copies of a document count once and documents without a token not at all: neither reaches the records, and pools
    that were counted with them would hold too few documents to choose a random next segment from. The ids are sorted
    through files, 28 bytes for each document, so neither a worker nor the runner holds them.

    Args:
        cased: the vocabulary keeps case.
        folder: of the job, for the ids; every worker must reach it.
    """

    def __init__(self, cased: bool, folder: Path):
        super().__init__()
        self._cased = cased
        self._folder = Path(folder) / "ids"

    def expand(self, documents):
        measured = documents | "MeasureDocuments" >> beam.FlatMap(measure_document, self._cased)
        buckets = documents.pipeline | "ListIdBuckets" >> beam.Create(range(BUCKETS))
        sizes = {"items": measured, "buckets": buckets} | "CountDistinct" >> SortThroughFiles(
            self._folder, count_distinct
        )
        return sizes | "AddSizes" >> beam.CombineGlobally(add_sizes)


def measure_document(document: Document, cased: bool) -> Iterator[tuple[int, list[bytes]]]:
    """Yield the bucket of a document, and one item: its id and its bytes of text; nothing where it has no token."""
    if not has_token(document.sentences, cased):
        return
    name = bytes.fromhex(document.id)
    text_bytes = sum(len(sentence.encode()) for sentence in document.sentences)
    yield name[0] % BUCKETS, [name + _BYTES.pack(text_bytes)]


def has_token(sentences: Iterable[str], cased: bool) -> bool:
    """Tell whether a word is left of any sentence: what is left of one is a token, if only [UNK]."""
    return any(normalize_text(part, cased) for sentence in sentences for part in sentence.split(maxsplit=1))


def count_distinct(bucket: int, items: Iterator[bytes]) -> Iterator[tuple[int, int]]:
    """Yield (documents, bytes of text) of a bucket, each document once."""
    yield add_sizes((1, _BYTES.unpack(next(same))[0]) for _, same in group_sorted(items, ID_BYTES))


def add_sizes(sizes: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """Add up (documents, bytes of text)."""
    documents = text_bytes = 0
    for more_documents, more_bytes in sizes:
        documents += more_documents
        text_bytes += more_bytes
    return documents, text_bytes
