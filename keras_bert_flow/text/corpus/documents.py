"""Read documents: separated by blank lines in `.txt`, one per line in `.jsonl`, one per row in `.parquet`."""

import hashlib
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO, NamedTuple

from keras_bert_flow.text.corpus.inputs import PARQUET, is_jsonl, open_input, whole_file
from keras_bert_flow.text.corpus.lines import LineReader, ReadingRule
from keras_bert_flow.text.corpus.parquet import read_column
from keras_bert_flow.text.corpus.sentences import split_sentences
from keras_bert_flow.text.corpus.storage import LOCAL, Storage, is_remote

__all__ = ["Document", "Fault", "ReadingRule", "find_fault", "make_document", "read_documents", "read_texts"]

_PIECE_BYTES = 1 << 20


ID_BYTES = 16  # of the digest that names a document


@dataclass(frozen=True)
class Document:
    """A document as sentences; `id` is the digest of the text, so it does not depend on where the text was found."""

    id: str
    sentences: tuple[str, ...]


def read_documents(
    path: str, rule: ReadingRule, counts: Counter | None = None, storage: Storage = LOCAL
) -> Iterator[Document]:
    """Read the documents of one file; arguments and errors as for `read_texts`."""
    for lines in read_texts(path, rule, counts, storage):
        yield make_document(lines, rule.split_lines)


def read_texts(
    path: str, rule: ReadingRule, counts: Counter | None = None, storage: Storage = LOCAL
) -> Iterator[list[str]]:
    """Yield the lines of each document of one file, holding one document at a time.

    Args:
        path: a corpus file, see `inputs.SUFFIXES`.
        rule: how lines are read.
        counts: counter to which the counts of `LineReader` are added, and `documents`. Every line read is used, blank
            or rejected; every document has text.
        storage: where the file is.
    Raises:
        ValueError: the file cannot be read, or a line is rejected and the rule is strict; the message names file and
            line. Documents before that have been yielded; `find_fault` checks beforehand.
    """
    with open_input(path, storage) as file:
        counts = Counter() if counts is None else counts
        for lines in _split(path, LineReader(file, path, rule, counts)):
            counts["documents"] += 1
            yield lines


class Fault(NamedTuple):
    """Why a file cannot be read to its end.

    Attributes:
        reason: `unreadable` if it cannot be opened, or `damaged`, which includes a Parquet file without the text
            column.
        message: one line that names the file.
        known_bytes: lost bytes, as far as known: those that could be decompressed or, if more, those on disk.
    """

    reason: str
    message: str
    known_bytes: int


def find_fault(path: str, rule: ReadingRule, storage: Storage = LOCAL) -> Fault | None:
    """Read a file to its end, without using it, and return the fault that prevents that; None if there is none."""
    try:
        file = open_input(path, storage)
    except ValueError as error:
        return Fault("unreadable", str(error), _file_bytes(path, storage))
    unpacked = 0
    with file:
        try:
            for piece in _read_pieces(file, path, rule):
                unpacked += len(piece)
        except ValueError as error:
            return Fault("damaged", str(error), max(unpacked, _file_bytes(path, storage)))
    return None


def make_document(lines: Iterable[str], split_lines: bool) -> Document:
    """Make a document from its lines, without blank sentences."""
    pieces = chain.from_iterable(map(split_sentences, lines)) if split_lines else map(str.strip, lines)
    sentences = tuple(filter(None, pieces))
    digest = hashlib.blake2b("\n".join(sentences).encode(), digest_size=ID_BYTES)
    return Document(digest.hexdigest(), sentences)


def _split(path: str, lines: LineReader) -> Iterator[list[str]]:
    if path.endswith(PARQUET):
        return map(str.splitlines, lines.read_parquet())
    if is_jsonl(path):
        return map(str.splitlines, lines.read_jsonl())
    return _split_text(lines.read_text())


def _split_text(lines: Iterable[str]) -> Iterator[list[str]]:
    texts: list[str] = []
    for line in lines:
        if line:
            texts.append(line)
        elif texts:
            yield texts
            texts = []
    if texts:
        yield texts


def _read_pieces(file: BinaryIO, path: str, rule: ReadingRule) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file, or the values of its text column."""
    if path.endswith(PARQUET):
        yield from (value or b"" for value in read_column(file, path, rule.text_field))
    else:
        read = getattr(file, "read1", file.read)  # `read` loses the bytes before the damage
        with whole_file(path):
            while piece := read(_PIECE_BYTES):
                yield piece


def _file_bytes(path: str, storage: Storage) -> int:
    """Return the size of a file as stored, 0 if unknown."""
    try:
        with storage.open(path) as file:
            return file.seek(0, io.SEEK_END)
    except (OSError, ValueError):
        try:
            return 0 if is_remote(path) else os.path.getsize(path)
        except OSError:
            return 0
