"""Read a sample of a corpus, and estimate the uncompressed size of the whole."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from keras_bert_flow.config.corpus import CorpusConfig
from keras_bert_flow.preflight.limited import EnoughError, LimitedCounts
from keras_bert_flow.text.corpus.documents import Document, ReadingRule, read_documents
from keras_bert_flow.text.corpus.inputs import DAMAGED_ERRORS, PARQUET, open_input, open_packed
from keras_bert_flow.text.corpus.parquet import list_chunks, open_table
from keras_bert_flow.text.corpus.unpacking import PACKED_SUFFIXES, unpack

SAMPLE_BYTES = 1_000_000
MOST_FILES = 16  # maximum number of files sampled
LEAST_FILES = 8  # with this many files sampled or more, each may provide at most 1/8 of the bytes
PACKED_SAMPLE_BYTES = 2_000_000


@dataclass(frozen=True)
class CorpusSample:
    """Sampled documents of a corpus, without duplicates.

    Attributes:
        read_bytes: bytes of the files up to the ends of these documents.
        total_bytes: uncompressed bytes of all files.
    """

    documents: tuple[Document, ...]
    read_bytes: int
    total_bytes: float


def read_sample(corpus: CorpusConfig, files: Sequence[str]) -> CorpusSample:
    """Read the beginnings of evenly spaced files; the sample is empty if their first documents are too long."""
    rule = ReadingRule(corpus.text_field, corpus.lines == "paragraphs", corpus.max_line_bytes)
    chosen = files[:: -(-len(files) // MOST_FILES)]
    documents: dict[str, Document] = {}
    read_bytes = 0
    for path in chosen:
        counts = LimitedCounts(SAMPLE_BYTES // min(LEAST_FILES, len(chosen)))
        end = 0
        try:
            for document in read_documents(path, rule, counts):
                documents[document.id] = document
                end = counts["bytes_read"]
            end = counts["bytes_read"]
        except EnoughError:
            pass
        read_bytes += end
    return CorpusSample(tuple(documents.values()), read_bytes, measure_bytes(corpus, files))


def measure_bytes(corpus: CorpusConfig, files: Sequence[str]) -> float:
    """Return the uncompressed size of files in bytes; for Parquet files, the size of the text column.

    The compression ratio is estimated from the beginning of the largest file with the same compression. A damaged
    Parquet file counts with its size on disk.
    """
    sizes = {path: Path(path).stat().st_size for path in files}
    total = 0.0
    for suffix in (*PACKED_SUFFIXES, PARQUET, ""):
        found = [path for path in sizes if path.endswith(suffix)]
        packed = sum(sizes.pop(path) for path in found)
        if suffix == PARQUET:
            total += sum(_column_bytes(path, corpus.text_field) for path in found)
        elif found and suffix:
            total += packed * _find_ratio(max(found, key=lambda path: Path(path).stat().st_size), suffix)
        else:
            total += packed
    return total


def _column_bytes(path: str, name: str) -> int:
    try:
        with open_input(path) as file:
            open_table(file, path, name)
            return sum(chunk.unpacked for chunk in list_chunks(file, path, name))
    except DAMAGED_ERRORS:
        return Path(path).stat().st_size


def _find_ratio(path: str, suffix: str) -> float:
    """Return the number of uncompressed bytes per compressed byte, up to where the file is damaged."""
    unpacked = 0
    with open_packed(path) as packed, unpack(packed, suffix) as file:
        with suppress(*DAMAGED_ERRORS):
            for piece in _read_pieces(file):
                unpacked += len(piece)
        return unpacked / max(1, packed.tell())


def _read_pieces(file: BinaryIO) -> Iterator[bytes]:
    left = PACKED_SAMPLE_BYTES
    while left > 0 and (piece := file.read(1 << 16)):
        left -= len(piece)
        yield piece
