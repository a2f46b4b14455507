"""Read the texts of a corpus file one at a time, with their numbers, and describe the text that is rejected.

Every line and row, and its bytes, is counted once as read, and once as used, blank, or rejected for a reason, so that
the totals add up.
"""

import re
import shlex
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

from keras_bert_flow.files.documents import parse_json
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


@dataclass
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

    file: BinaryIO
    path: str
    rule: ReadingRule
    counts: Counter
    # Lines that end in CR and were read together with one before them, and the beginning of a line after such lines
    _split: deque[bytes] = field(init=False, default_factory=deque)
    _begun: bytes = field(init=False, default=b"")

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
                text = parse_json(line)[self.rule.text_field]
                if not isinstance(text, str):
                    raise TypeError
            except (ValueError, TypeError, KeyError):
                wanted = f"hold a JSON object with the text field `{self.rule.text_field}`"
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
        most = self.rule.max_line_bytes
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
        number, counts = 0, self.counts
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
        most = self.rule.max_line_bytes + _AROUND_BYTES
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
            raise describe_damage(self.path, error) from error

    def _read_piece(self, most: int) -> bytes:
        """Read a line with its end, or about `most` bytes of a longer one; empty after the last."""
        if self._split:
            return self._split.popleft()
        wanted = max(1, most - len(self._begun))
        read = self.file.readline(wanted)
        line, self._begun = self._begun + read, b""
        first = line.find(b"\r")
        if first < 0 or line[first:].lstrip(b"\r") == b"\n":  # nearly always; CR before LF belongs to one line end
            return line
        is_last = len(read) < wanted and not read.endswith(b"\n")
        if line.endswith(b"\r"):
            line += self.file.readline(1)  # which may be the LF of CRLF
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
        for number, value in enumerate(read_column(self.file, self.path, self.rule.text_field), 1):
            size = len(value or b"")
            self._add("read", size)
            if value is None:
                self._reject("null", f"hold text in the column `{self.rule.text_field}`", number, size)
            else:
                yield number, value, size

    def _reject(self, reason: str, wanted: str, number: int, size: int) -> None:
        if self.rule.strict:
            raise ValueError(
                f"A line of the corpus must {wanted}. Received: line {number} of {self.path}. Fix it or drop --strict."
            )
        self._add(f"rejected_{reason}", size)

    def _add(self, what: str, size: int) -> None:
        lines, total = _COUNTER_NAMES.get(what) or (f"lines_{what}", f"bytes_{what}")
        self.counts[lines] += 1
        self.counts[total] += size


# Say how a file in another encoding becomes UTF-8.

LEAST_NUL_SHARE = 0.25  # of the bytes of UTF-16 without a byte order mark; half of them for Latin letters


def suggest_conversion(content: bytes, path: str = "FILE") -> str:
    """Return a command that converts text to UTF-8 from the encoding that it seems to have.

    Libraries that guess encodings were tried: of a few sentences in windows-1252, shift_jis or windows-1251, most were
    taken for others. UTF-16 can be told; otherwise the reader has to say.

    Args:
        content: the first bytes of a file that is not UTF-8, or a line of it.
        path: of the file.
    """
    encoding = guess_utf16(content)
    if encoding:
        return f"Convert it with {rewrite(f'iconv -f {encoding} -t UTF-8', path)}."
    return (
        f"Convert it with {rewrite('iconv -f ENCODING -t UTF-8', path)}, where ENCODING is that of the program which "
        "wrote it: WINDOWS-1252 in Western Europe, WINDOWS-1251 for Cyrillic, SHIFT_JIS, GB18030 and so on."
    )


def guess_utf16(content: bytes) -> str:
    """Return iconv's name of the UTF-16 that the first bytes of a file seem to be in; "" if they do not."""
    if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return "UTF-16"  # iconv reads the mark
    if content.count(0) < LEAST_NUL_SHARE * len(content) or not content:
        return ""
    return "UTF-16BE" if content[::2].count(0) > content[1::2].count(0) else "UTF-16LE"


def rewrite(command: str, path: str) -> str:
    """Return a shell command that writes what a filter makes of a file, which may be gzipped, to the file NEW."""
    name = path if path == "FILE" else shlex.quote(path)
    return f"gunzip -c {name} | {command} > NEW" if path.endswith(".gz") else f"{command} < {name} > NEW"


# Describe the rejected text of a corpus: how much, for which reason, in which files, and what to do.
#
# Readers count `lines_rejected_<reason>` and `bytes_rejected_<reason>` (`text/corpus/lines.py`), and for skipped files
# `files_rejected_<reason>` and their known bytes. Bytes are those of the decompressed file, line ends included.

NAMED_FILES = 3  # per reason, those with the most rejected bytes


@dataclass(frozen=True)
class Reason:
    """Why text is rejected.

    Attributes:
        unit: what is rejected as a whole, `line`, `row` or `file`.
        what: follows "3 lines " in a message.
        remedy: a sentence.
    """

    unit: str
    what: str
    remedy: str


REASONS = {
    "not_utf8": Reason("line", "not UTF-8", "Convert text to UTF-8, as by iconv -f LATIN1 -t UTF-8."),
    "too_long": Reason(
        "line", "longer than corpus.max_line_bytes", "Break long lines into paragraphs, or set corpus.max_line_bytes."
    ),
    "nul": Reason(
        "line", "with NUL bytes, as in binary files and UTF-16", "Leave out binary files; convert UTF-16 to UTF-8."
    ),
    "not_json_with_text": Reason(
        "line", "not a JSON object with the text field", "Name the field that holds the text in corpus.text_field."
    ),
    "lone_surrogate": Reason(
        "line",
        "with half of a surrogate pair (\\ud800 to \\udfff), which is no character",
        "Write the text again with whole characters: something cut it inside one, such as an emoji.",
    ),
    "null": Reason("row", "without a value", "Leave out rows without text."),
    "unreadable": Reason("file", "that cannot be opened", "Restore the files."),
    "damaged": Reason("file", "that cannot be read to the end", "Restore the files."),
}


def rejected_bytes(counters: Mapping[str, int]) -> dict[str, int]:
    """Return the rejected bytes by reason, for the reasons that occurred."""
    return {reason: counters.get(f"bytes_rejected_{reason}", 0) for reason in REASONS if _units(counters, reason)}


def rejected_share(counters: Mapping[str, int]) -> float:
    """Return the share of the bytes of a corpus that were rejected; 0.0 if there are none."""
    read = counters.get("bytes_read", 0)
    return sum(rejected_bytes(counters).values()) / read if read else 0.0


def describe_rejected(counters: Mapping[str, int], files: Sequence[tuple[str, str, int]] = ()) -> str:
    """Describe the rejected text as part of a sentence; an empty string if nothing was rejected.

    Args:
        counters: counters of the readers.
        files: (reason, path, rejected bytes) of each file with rejected text, if known.
    """
    by_reason = rejected_bytes(counters)
    if not by_reason:
        return ""
    parts = (_describe(reason, count, counters, files) for reason, count in by_reason.items())
    lost, percent = sum(by_reason.values()), 100 * rejected_share(counters)
    return f"{lost:,} of {counters.get('bytes_read', 0):,} bytes ({percent:.2f} %) rejected: {'; '.join(parts)}"


def advise(counters: Mapping[str, int]) -> str:
    """Return what to do about the rejected text, the reason with the most bytes first."""
    by_reason = rejected_bytes(counters)
    ordered = sorted(by_reason, key=by_reason.__getitem__, reverse=True)
    return " ".join(dict.fromkeys(REASONS[reason].remedy for reason in ordered))


def check_rejected(counters: Mapping[str, int], max_share: float, files: Sequence[tuple[str, str, int]] = ()) -> None:
    """Raise ValueError if too much of a corpus was rejected.

    Raises:
        ValueError: more than `max_share` of the bytes; the message says why, where, and what to do.
    """
    if rejected_share(counters) > max_share:
        raise ValueError(
            f"At most {100 * max_share:.4g} % of the bytes of a corpus may be rejected. "
            f"Received: {describe_rejected(counters, files)}. {advise(counters)} Or allow it by --max-rejected-share=1 "
            "(corpus.max_rejected_share)."
        )


def explain_lack(counters: Mapping[str, int]) -> tuple[str, str]:
    """Return why a corpus has too little text, and what to do about it.

    Args:
        counters: counters of the readers, and of the job if it counts `documents_without_tokens` and
            `duplicate_documents`.
    """
    if not counters.get("bytes_read") and not rejected_bytes(counters):
        return "all of it empty", "Check the input."
    empty = counters.get("documents_without_tokens", 0)
    copies = counters.get("duplicate_documents", 0)
    facts = {
        describe_rejected(counters): advise(counters),
        "blank lines only" if counters.get("lines_blank") == counters.get("lines_read") else "": "Check the input.",
        f"{empty:,} of controls, format characters or accents alone" if empty else "": "Check the encoding.",
        f"{copies:,} copies of others" if copies else "": "Give more different documents.",
    }
    facts.pop("", None)
    return ", ".join(facts), " ".join(facts.values()) or "Put blank lines between documents."


def _describe(reason: str, count: int, counters: Mapping[str, int], files: Sequence[tuple[str, str, int]]) -> str:
    units, unit = _units(counters, reason), REASONS[reason].unit
    text = f"{count:,} bytes in {units:,} {unit}{'s' * (units != 1)} {REASONS[reason].what}"
    found = sorted((-file_bytes, path) for of, path, file_bytes in files if of == reason)
    if not found:
        return text
    names = ", ".join(path for _, path in found[:NAMED_FILES])
    more = len(found) - NAMED_FILES
    return f"{text} ({names}" + (f" and {more:,} more file{'s' * (more != 1)})" if more > 0 else ")")


def _units(counters: Mapping[str, int], reason: str) -> int:
    kind = "files" if REASONS[reason].unit == "file" else "lines"
    return counters.get(f"{kind}_rejected_{reason}", 0)
