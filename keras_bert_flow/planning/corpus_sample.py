"""Read a sample of a corpus, and tell how large all of it is, unpacked."""

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
MOST_FILES = 16  # of which something is read
LEAST_FILES = 8  # among which the bytes are divided: a file gives no more than an eighth, where there are several
PACKED_SAMPLE_BYTES = 2_000_000


@dataclass(frozen=True)
class CorpusSample:
    """Documents of a corpus, each once.

    Attributes:
        read_bytes: of the files up to the ends of these documents.
        total_bytes: of all files, unpacked.
    """

    documents: tuple[Document, ...]
    read_bytes: int
    total_bytes: float


def read_sample(corpus: CorpusConfig, files: Sequence[str]) -> CorpusSample:
    """Read the beginnings of files that lie evenly among all; without a document where the first ones are too long."""
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
    """Return the unpacked bytes of files, those of the column of text of Parquet files.

    How much a packed file holds is told by the beginning of the largest one packed likewise; a damaged Parquet file
    counts as it lies.
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
    """Return unpacked bytes per packed byte, up to where the file is damaged."""
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
