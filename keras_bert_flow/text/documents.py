"""Read documents from lines: blank lines between them in `.txt`, one a line in `.jsonl`."""

import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from keras_bert_flow.text.inputs import is_jsonl, open_input
from keras_bert_flow.text.sentences import split_sentences

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_AROUND_BYTES = len(BYTE_ORDER_MARK) + len(b"\r\n")  # what a line may have around its text


@dataclass(frozen=True)
class Document:
    """A text as sentences; `id` is the digest of the text, so it does not depend on where the text was found."""

    id: str
    sentences: tuple[str, ...]


@dataclass(frozen=True)
class ReadingRule:
    """How the lines of a corpus are read.

    Attributes:
        json_field: field of a JSON line that holds the text.
        split_lines: a line is a paragraph to be split into sentences; otherwise it is one sentence.
        max_line_bytes: longer lines are rejected.
        strict: raise at the first rejected line.
    """

    json_field: str = "text"
    split_lines: bool = True
    max_line_bytes: int = 1_000_000
    strict: bool = False


def read_documents(path: str, rule: ReadingRule, count: Callable[[str], None]) -> Iterator[Document]:
    """Read the documents of one file, never more than one of them at a time.

    Args:
        path: a .txt or .jsonl file, or one of these gzipped.
        rule: how lines are read.
        count: called with `lines_read`, `lines_rejected_<reason>` or `documents`, once for each.
    Raises:
        ValueError: the file is damaged, or a line is rejected and the rule is strict; the message names file and line.
    """
    with open_input(path) as file:
        lines = _read_lines(file, path, rule, count)
        paragraphs = _split_jsonl(lines, path, rule, count) if is_jsonl(path) else _split_text(lines)
        for texts in paragraphs:
            document = make_document(texts, rule.split_lines)
            if document.sentences:
                count("documents")
                yield document


def make_document(lines: Iterable[str], split_lines: bool) -> Document:
    """Make a document of its lines, blank sentences left out."""
    pieces = (split_sentences(line) if split_lines else [line.strip()] for line in lines)
    sentences = tuple(sentence for piece in pieces for sentence in piece if sentence)
    digest = hashlib.blake2b("\n".join(sentences).encode(), digest_size=16)
    return Document(digest.hexdigest(), sentences)


def _split_text(lines: Iterable[tuple[int, str]]) -> Iterator[list[str]]:
    texts: list[str] = []
    for _, line in lines:
        if line.strip():
            texts.append(line)
        elif texts:
            yield texts
            texts = []
    if texts:
        yield texts


def _split_jsonl(
    lines: Iterable[tuple[int, str]], path: str, rule: ReadingRule, count: Callable[[str], None]
) -> Iterator[list[str]]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            text = json.loads(line)[rule.json_field]
            if not isinstance(text, str):
                raise TypeError
            text.encode()  # half of a surrogate pair, which JSON can write and UTF-8 cannot, is no text
        except (ValueError, TypeError, KeyError, RecursionError):
            _reject(
                "not_json_with_text",
                f"hold a JSON object with the text field `{rule.json_field}`",
                path,
                number,
                rule,
                count,
            )
            continue
        yield text.splitlines()


def _read_lines(
    file: BinaryIO, path: str, rule: ReadingRule, count: Callable[[str], None]
) -> Iterator[tuple[int, str]]:
    number = 0
    while line := _read_line(file, path, rule.max_line_bytes):
        number += 1
        count("lines_read")
        if number == 1:
            line = line.removeprefix(BYTE_ORDER_MARK)
        if len(line.removesuffix(b"\n").removesuffix(b"\r")) > rule.max_line_bytes:
            _reject("too_long", f"have at most {rule.max_line_bytes:,} bytes", path, number, rule, count)
            continue
        try:
            yield number, line.decode("utf-8")
        except UnicodeDecodeError:
            _reject("not_utf8", "be UTF-8", path, number, rule, count)


def _read_line(file: BinaryIO, path: str, max_line_bytes: int) -> bytes:
    """Read one line with its end, empty after the last; one over `max_line_bytes` comes cut, but still too long."""
    try:
        line = file.readline(max_line_bytes + _AROUND_BYTES)
        rest = line
        while rest and not rest.endswith(b"\n"):
            rest = file.readline(max_line_bytes + _AROUND_BYTES)
        return line
    except (EOFError, OSError, zlib.error) as error:  # gzip raises each of these for a cut or damaged file
        raise ValueError(
            f"A corpus file must be whole. Received: {path}, damaged: {error}. Restore the file."
        ) from error


def _reject(reason: str, wanted: str, path: str, number: int, rule: ReadingRule, count: Callable[[str], None]) -> None:
    if rule.strict:
        raise ValueError(
            f"A line of the corpus must {wanted}. Received: line {number} of {path}. Mend it or drop --strict."
        )
    count(f"lines_rejected_{reason}")
