"""Read the texts of a corpus file one at a time, with their numbers: lines of text or JSON, rows of Parquet.

Every line and row, and its bytes, is counted once as read, and once as used, blank, or rejected for a reason, so that
the totals add up.
"""

import re
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from keras_bert_flow.json_documents import parse_json
from keras_bert_flow.text.corpus.inputs import DAMAGED_ERRORS, describe_damage
from keras_bert_flow.text.corpus.parquet import read_column

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COUNTER_NAMES = {what: (f"lines_{what}", f"bytes_{what}") for what in ("read", "used", "blank")}
_ENDS = re.compile(rb"\r+\n?|\n")
_SURROGATE = re.compile("[\ud800-\udfff]")
_AROUND_BYTES = len(BYTE_ORDER_MARK) + len(b"\r\n")  # what a line may have around its text


@dataclass(frozen=True)
class ReadingRule:
    """How the lines of a corpus are read.

    Attributes:
        text_field: field of a JSON line, or column of a Parquet file, that holds the text.
        split_lines: a line is a paragraph to be split into sentences; otherwise it is one sentence.
        max_line_bytes: longer lines and rows are rejected.
        strict: raise at the first rejected line.
    """

    text_field: str = "text"
    split_lines: bool = True
    max_line_bytes: int = 1_000_000
    strict: bool = False


class LineReader:
    """Reader of the texts of one file, whose lines end in LF, CRLF or CR.

    Args:
        file: open file, decompressed.
        path: its name, for messages.
        rule: how lines are read.
        counts: counter to which `lines_<what>` and `bytes_<what>` are added for each line or row: `read`, and one of
            `used`, `blank` and `rejected_<reason>`. The bytes of a line are those of the decompressed file, line end
            included; those of a row are those of its value.
    """

    def __init__(self, file: BinaryIO, path: str, rule: ReadingRule, counts: Counter):
        self._file, self._path, self._rule, self._counts = file, path, rule, counts
        self._split: deque[bytes] = deque()  # lines that end in CR and were read together with one before them
        self._begun = b""  # the beginning of a line, read together with such lines

    def read_text(self) -> Iterator[str]:
        """Yield every usable line of a text file; a blank line is an empty string."""
        for _, line, size in self._decoded(self._lines()):
            if line == "\n":  # about as many as documents
                self._add("blank", size)
                yield ""
            else:
                yield self._tell_blank(line, size)

    def read_jsonl(self) -> Iterator[str]:
        """Yield the text of every JSON line that has one."""
        for number, line, size in self._decoded(self._lines()):
            if not line.strip():
                self._add("blank", size)
                continue
            try:
                text = parse_json(line)[self._rule.text_field]
                if not isinstance(text, str):
                    raise TypeError
            except (ValueError, TypeError, KeyError):
                wanted = f"hold a JSON object with the text field `{self._rule.text_field}`"
                self._reject("not_json_with_text", wanted, number, size)
                continue
            if _SURROGATE.search(text):  # JSON can encode it and UTF-8 cannot
                wanted = "hold whole characters, not half of a surrogate pair (\\ud800 to \\udfff)"
                self._reject("lone_surrogate", wanted, number, size)
                continue
            if text := self._tell_blank(text, size):
                yield text

    def read_parquet(self) -> Iterator[str]:
        """Yield the text of every row that has one."""
        for _, text, size in self._decoded(self._rows()):
            if text := self._tell_blank(text, size):
                yield text

    def _tell_blank(self, text: str, size: int) -> str:
        blank = not text.strip()
        self._add("blank" if blank else "used", size)
        return "" if blank else text

    def _decoded(self, lines: Iterator[tuple[int, bytes, int]]) -> Iterator[tuple[int, str, int]]:
        most = self._rule.max_line_bytes
        for number, line, size in lines:
            if len(line) > most and len(line.removesuffix(b"\n").removesuffix(b"\r")) > most:
                self._reject("too_long", f"have at most {most:,} bytes", number, size)
                continue
            try:
                yield number, line.decode("utf-8"), size
            except UnicodeDecodeError:
                self._reject("not_utf8", "be UTF-8", number, size)

    def _lines(self) -> Iterator[tuple[int, bytes, int]]:
        """Yield the number, the text and the bytes in the file of each line without a NUL byte."""
        number, counts = 0, self._counts
        while (found := self._read_line())[1]:
            number += 1
            line, size, has_nul = found
            counts["lines_read"] += 1
            counts["bytes_read"] += size
            if has_nul:
                self._reject("nul", "hold no NUL byte, as binary files and UTF-16 do", number, size)
            else:
                yield number, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line, size

    def _read_line(self) -> tuple[bytes, int, bool]:
        """Read one line with its end; return it, its size in bytes, and whether it has a NUL byte.

        The line is empty after the last one; a line that is too long is truncated, but still too long.
        """
        most = self._rule.max_line_bytes + _AROUND_BYTES
        try:
            line = rest = self._read_piece(most)
            size, has_nul = len(line), b"\0" in line
            if size < most:  # the line ends here
                return line, size, has_nul
            while rest and not rest.endswith((b"\n", b"\r")):
                rest = self._read_piece(most)
                size += len(rest)
                has_nul = has_nul or b"\0" in rest
            return line, size, has_nul
        except DAMAGED_ERRORS as error:  # `whole_file` would cost as much as the reading
            raise describe_damage(self._path, error) from error

    def _read_piece(self, most: int) -> bytes:
        """Read a line with its end, or about `most` bytes of a longer one; empty after the last."""
        if self._split:
            return self._split.popleft()
        wanted = max(1, most - len(self._begun))
        read = self._file.readline(wanted)
        line, self._begun = self._begun + read, b""
        first = line.find(b"\r")
        if first < 0 or line[first:].lstrip(b"\r") == b"\n":  # nearly always; CR before LF belongs to one line end
            return line
        is_last = len(read) < wanted and not read.endswith(b"\n")
        if line.endswith(b"\r"):
            line += self._file.readline(1)  # which may be the LF of CRLF
        start = 0
        for match in _ENDS.finditer(line):
            end = match.group()
            several = 1 if end.endswith(b"\n") else len(end)
            self._split.append(line[start : match.end() - several + 1])
            self._split.extend([b"\r"] * (several - 1))
            start = match.end()
        if is_last and start < len(line):
            self._split.append(line[start:])
        else:
            self._begun = line[start:]
        return self._split.popleft()

    def _rows(self) -> Iterator[tuple[int, bytes, int]]:
        for number, value in enumerate(read_column(self._file, self._path, self._rule.text_field), 1):
            size = len(value or b"")
            self._add("read", size)
            if value is None:
                self._reject("null", f"hold text in the column `{self._rule.text_field}`", number, size)
            else:
                yield number, value, size

    def _reject(self, reason: str, wanted: str, number: int, size: int) -> None:
        if self._rule.strict:
            raise ValueError(
                f"A line of the corpus must {wanted}. Received: line {number} of {self._path}. Fix it or drop --strict."
            )
        self._add(f"rejected_{reason}", size)

    def _add(self, what: str, size: int) -> None:
        lines, total = _COUNTER_NAMES.get(what) or (f"lines_{what}", f"bytes_{what}")
        self._counts[lines] += 1
        self._counts[total] += size
