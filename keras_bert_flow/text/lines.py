"""Read the texts of a corpus file one at a time, each with its number: lines of text or JSON, rows of Parquet.

Every line and row is counted once as read, and once as used, blank, or rejected for a reason: the totals add up.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from keras_bert_flow.text.inputs import whole_file
from keras_bert_flow.text.parquet import read_column

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
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
    """Read the texts of one file.

    Args:
        file: open, unpacked.
        path: its name, for messages.
        rule: how lines are read.
        count: called with `lines_read`, and with `lines_used`, `lines_blank` or `lines_rejected_<reason>`, once for
            each line or row.
    """

    def __init__(self, file: BinaryIO, path: str, rule: ReadingRule, count: Callable[[str], None]):
        self._file, self._path, self._rule, self._count = file, path, rule, count

    def read_text(self) -> Iterator[str]:
        """Emit every line of a text file that can be used; a blank one is an empty string."""
        for _, line in self._decoded(self._lines()):
            yield self._tell_blank(line)

    def read_jsonl(self) -> Iterator[str]:
        """Emit the text of every line of JSON that has one."""
        for number, line in self._decoded(self._lines()):
            if not line.strip():
                self._count("lines_blank")
                continue
            try:
                text = json.loads(line)[self._rule.text_field]
                if not isinstance(text, str):
                    raise TypeError
                text.encode()  # half of a surrogate pair, which JSON can write and UTF-8 cannot, is no text
            except (ValueError, TypeError, KeyError, RecursionError):
                wanted = f"hold a JSON object with the text field `{self._rule.text_field}`"
                self._reject("not_json_with_text", wanted, number)
                continue
            if text := self._tell_blank(text):
                yield text

    def read_parquet(self) -> Iterator[str]:
        """Emit the text of every row that has one."""
        for _, text in self._decoded(self._rows()):
            if text := self._tell_blank(text):
                yield text

    def _tell_blank(self, text: str) -> str:
        blank = not text.strip()
        self._count("lines_blank" if blank else "lines_used")
        return "" if blank else text

    def _decoded(self, lines: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, str]]:
        most = self._rule.max_line_bytes
        for number, line in lines:
            if len(line.removesuffix(b"\n").removesuffix(b"\r")) > most:
                self._reject("too_long", f"have at most {most:,} bytes", number)
                continue
            try:
                yield number, line.decode("utf-8")
            except UnicodeDecodeError:
                self._reject("not_utf8", "be UTF-8", number)

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        number = 0
        while line := self._read_line():
            number += 1
            self._count("lines_read")
            yield number, line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line

    def _read_line(self) -> bytes:
        """Read one line with its end, empty after the last; one that is too long comes cut, but still too long."""
        most = self._rule.max_line_bytes + _AROUND_BYTES
        with whole_file(self._path):
            line = rest = self._file.readline(most)
            while rest and not rest.endswith(b"\n"):
                rest = self._file.readline(most)
            return line

    def _rows(self) -> Iterator[tuple[int, bytes]]:
        for number, value in enumerate(read_column(self._file, self._path, self._rule.text_field), 1):
            self._count("lines_read")
            if value is None:
                self._reject("null", f"hold text in the column `{self._rule.text_field}`", number)
            else:
                yield number, value

    def _reject(self, reason: str, wanted: str, number: int) -> None:
        if self._rule.strict:
            raise ValueError(
                f"A line of the corpus must {wanted}. Received: line {number} of {self._path}. "
                "Mend it or drop --strict."
            )
        self._count(f"lines_rejected_{reason}")
