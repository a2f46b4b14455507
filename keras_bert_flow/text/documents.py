"""Read documents: between blank lines in `.txt`, one a line in `.jsonl`, one a row in `.parquet`."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from keras_bert_flow.text.inputs import PARQUET, is_jsonl, open_input, whole_file
from keras_bert_flow.text.lines import LineReader, ReadingRule
from keras_bert_flow.text.parquet import read_column
from keras_bert_flow.text.sentences import split_sentences
from keras_bert_flow.text.storage import LOCAL, Storage

__all__ = ["Document", "ReadingRule", "find_fault", "make_document", "read_documents"]

_PIECE_BYTES = 1 << 20


ID_BYTES = 16  # of the digest that names a document


@dataclass(frozen=True)
class Document:
    """A text as sentences; `id` is the digest of the text, so it does not depend on where the text was found."""

    id: str
    sentences: tuple[str, ...]


def read_documents(
    path: str, rule: ReadingRule, count: Callable[[str], None], storage: Storage = LOCAL
) -> Iterator[Document]:
    """Read the documents of one file, never more than one of them at a time.

    Args:
        path: a corpus file, see `inputs.SUFFIXES`.
        rule: how lines are read.
        count: called with what `LineReader` counts, and with `documents` once for each of them. Read lines are used,
            blank, or rejected; documents all have text.
        storage: where the file lies.
    Raises:
        ValueError: the file cannot be read, or a line is rejected and the rule is strict; the message names file and
            line. What came before is not taken back: `find_fault` tells beforehand.
    """
    with open_input(path, storage) as file:
        lines = LineReader(file, path, rule, count)
        for texts in _split(path, lines):
            count("documents")
            yield make_document(texts, rule.split_lines)


def find_fault(path: str, rule: ReadingRule, storage: Storage = LOCAL) -> tuple[str, str] | None:
    """Read a file to its end, using nothing of it, and return (reason, message) where that cannot be done.

    The reasons are `unreadable`, where it cannot be opened, and `damaged`, which a Parquet file without the column of
    text is as well.
    """
    try:
        file = open_input(path, storage)
    except ValueError as error:
        return "unreadable", str(error)
    with file:
        try:
            if path.endswith(PARQUET):
                for _ in read_column(file, path, rule.text_field):
                    pass
            else:
                with whole_file(path):
                    while file.read(_PIECE_BYTES):
                        pass
        except ValueError as error:
            return "damaged", str(error)
    return None


def make_document(lines: Iterable[str], split_lines: bool) -> Document:
    """Make a document of its lines, blank sentences left out."""
    pieces = (split_sentences(line) if split_lines else [line.strip()] for line in lines)
    sentences = tuple(sentence for piece in pieces for sentence in piece if sentence)
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
