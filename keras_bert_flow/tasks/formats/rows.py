"""Read rows of .tsv, .csv, .jsonl and .parquet files in bounded memory; errors name the row."""

import csv
import json
import logging
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import count, islice
from pathlib import Path
from typing import Any, BinaryIO

from keras_bert_flow.files.documents import parse_json
from keras_bert_flow.tasks.formats.parquet_rows import list_columns, read_parquet
from keras_bert_flow.text.corpus.inputs import PACKED_SUFFIXES, PARQUET, unpack
from keras_bert_flow.text.corpus.lines import guess_utf16, rewrite, suggest_conversion

# Read plain or compressed files of a task with size limits, so that no file fills the memory.

MAX_LINE_BYTES = 16 << 20
MAX_FILE_BYTES = 1 << 30  # of a file that is read whole
FREELY_UNPACKED_BYTES = 16 << 20
MAX_PACKING_RATIO = 100  # above that size; text has 3 to 10, and at most 1,032 is possible
GZIP = (".gz",)
ANY_PACKING = PACKED_SUFFIXES
_PIECE_BYTES = 1 << 20
# suffix → name of the format, command that unpacks it
_FORMATS = {
    ".gz": ("gzip", "gunzip"),
    ".bz2": ("bzip2", "bunzip2"),
    ".xz": ("xz", "unxz"),
    ".zst": ("Zstandard", "unzstd"),
}


def read_byte_lines(path: str, packed_as: Sequence[str] = GZIP, by_line: bool = True) -> Iterator[bytes]:
    """Yield the lines of a file, each with its line feed.

    Args:
        packed_as: files whose names end in one of these suffixes are decompressed.
        by_line: yield lines, rather than pieces of equal size.
    Raises:
        ValueError: a compressed file is damaged or expands to far more than text would, or a line is too long.
    """
    suffix = next((suffix for suffix in packed_as if path.endswith(suffix)), None)
    with open(path, "rb") as packed:
        file: BinaryIO = packed if suffix is None else unpack(packed, suffix)
        packed_bytes = os.fstat(packed.fileno()).st_size
        unpacked = 0
        for number in count(1):
            try:
                piece = file.readline(MAX_LINE_BYTES + 1) if by_line else file.read(_PIECE_BYTES)
            except (EOFError, OSError, ValueError):
                if suffix is None:
                    raise
                raise ValueError(
                    f"A {suffix} file must be whole {_FORMATS[suffix][0]}. Received: {path}. Fetch or compress it "
                    "again."
                ) from None
            if not piece:
                return
            if by_line and len(piece) > MAX_LINE_BYTES:
                raise ValueError(
                    f"{path}, row {number}: a row must have at most {MAX_LINE_BYTES >> 20} MiB. Received: more. "
                    "Cut it, or look for missing line ends."
                )
            unpacked += len(piece)
            if suffix is not None and unpacked > max(FREELY_UNPACKED_BYTES, MAX_PACKING_RATIO * packed_bytes):
                raise ValueError(
                    f"A {suffix} file must decompress to at most {MAX_PACKING_RATIO} times its size. Received: "
                    f"{path}, of {packed_bytes:,} bytes, with more. If you trust it, decompress it with "
                    f"{_FORMATS[suffix][1]}."
                )
            yield piece


def read_whole(path: str) -> bytes:
    """Return the content of a file, decompressed if the name ends in .gz; errors as for `read_byte_lines`."""
    pieces, size = [], 0
    for piece in read_byte_lines(path, by_line=False):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_FILE_BYTES:
            raise ValueError(
                f"{path}: a file must have at most {MAX_FILE_BYTES >> 20:,} MiB. Received: more. Split it, or give "
                "a .jsonl."
            )
    return b"".join(pieces)


JSON_LINES = ".jsonl"
NAMED_FIELDS = (JSON_LINES, PARQUET)  # no first line names their columns
TABLES = (".tsv", ".csv", *NAMED_FIELDS)
COMMA, DELIMITERS = ",", (";", "\t", "|")
REMOVE_NUL, END_LINES = r"tr -d '\000'", r"tr '\r' '\n'"
LOOKED_AT_ROWS = 50  # for the delimiter
Row = tuple[int, list]  # line of the file on which the row starts, from 1; its values

_logger = logging.getLogger(__name__)


def read_rows(
    path: str | Path, columns: list[str], header: bool, num_labels: int = 1, keeps_blanks: bool = False
) -> Iterator[Row]:
    """Yield the values of the named columns, row by row.

    Args:
        path: the file; its suffix determines the format.
        columns: names, or numbers from 0 if `header` is False.
        header: the first line of a .tsv or .csv names the columns.
        num_labels: number of label columns, the last ones. In .jsonl and .parquet they may be numbers or booleans,
            which are spelt as in JSON.
        keeps_blanks: yield a blank line, other than before a header, as a row of empty values, instead of skipping it.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is malformed, or lacks a column.
    """
    kind = require_ending(path, TABLES)
    path = str(path)
    if kind in NAMED_FIELDS:
        return _parse_named(path, columns, len(columns) - num_labels, keeps_blanks)
    rows = _parse_cells(path, None if kind == ".tsv" else find_delimiter(path, columns, header))
    return _pick_columns(path, rows, columns, header, keeps_blanks)


def read_whole_rows(path: str | Path) -> Iterator[tuple[int, list[str] | dict[str, Any]]]:
    """Yield the line, from 1, and all values of each row, unchanged; the first line is a row like any other.

    Of a .parquet these are the values that `read_rows` can read, by column.

    Raises:
        FileNotFoundError, ValueError: as for `read_rows`.
    """
    kind = require_ending(path, TABLES)
    path = str(path)
    if kind == JSON_LINES:
        yield from read_objects(path)
    elif kind == PARQUET:
        for name in (names := list_columns(path)):
            _find_column(path, name, names)
        yield from read_parquet(path)
    else:
        rows = _parse_cells(path, None if kind == ".tsv" else find_delimiter(path))
        yield from (row for row in rows if not _is_blank(row[1]))


def find_delimiter(path: str | Path, columns: Sequence[str] = (), header: bool = True) -> str:
    """Return what separates the columns of a .csv: a comma, or what spreadsheets write where numbers have commas.

    It is another character if the first row is a single column without it, and the first rows all have equally many
    columns with it. A warning says so.

    Args:
        columns, header: as for `read_rows`. If the row has these columns without it, nothing else is looked for.
    """
    first = next(read_lines(path), (0, ""))[1]
    if "," in first or (columns and {*columns} <= ({first.strip().strip('"')} if header else {"0"})):
        return COMMA
    for delimiter in (delimiter for delimiter in DELIMITERS if delimiter in first):
        rows, widths = islice(_parse_cells(str(path), delimiter), LOOKED_AT_ROWS), set[int]()
        with suppress(ValueError):
            widths = {len(values) for _, values in rows if not _is_blank(values)}
        if len(widths) == 1 and widths != {1}:
            _logger.warning("%s: columns are separated by %r instead of a comma.", path, delimiter)
            return delimiter
    return COMMA


def read_objects(
    path: str | Path, packed_as: Sequence[str] = GZIP, skips_blanks: bool = True
) -> Iterator[tuple[int, dict]]:
    """Yield the line, from 1, and the fields of each object of a .jsonl.

    Args:
        packed_as: suffixes of compressed files that may follow.
        skips_blanks: skip blank lines, instead of refusing them.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a .jsonl, or a line is not one JSON object.
    """
    require_ending(path, (".jsonl",), packed_as)
    for number, line in read_lines(path, packed_as):
        if line.strip() or not skips_blanks:
            yield number, parse_object(f"{path}, row {number}", line)


def parse_object(place: str, text: str) -> dict:
    """Return the fields of a JSON object; the error names `place` if the text is not one."""
    try:
        fields = parse_json(text)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise ValueError(f"{place}: this must be one JSON object. Received: {abridge([text])}. Correct it.")
    return fields


def pick_fields(place: str, fields: dict, columns: list[str]) -> list:
    """Return the values of the named fields of a JSON object."""
    for column in columns:
        if column not in fields:
            _find_column(place, column, list(fields))  # raises
    return [fields[column] for column in columns]


def spell_label(value: Any) -> Any:
    """Return a number or boolean as spelt in JSON, any other value unchanged, such as NaN, which JSON has not."""
    is_spelt = isinstance(value, bool | int) or (isinstance(value, float) and math.isfinite(value))
    return json.dumps(value) if is_spelt else value


def require_ending(path: str | Path, endings: tuple[str, ...], packed_as: Sequence[str] = GZIP) -> str:
    """Return the suffix of a file, without that of its compression, if it is one of `endings`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file has another suffix.
    """
    packing = next((suffix for suffix in packed_as if str(path).endswith(suffix)), "")
    ending = Path(str(path).removesuffix(packing)).suffix
    if ending not in endings:
        packings = packed_as[0] if len(packed_as) == 1 else f"one of {', '.join(packed_as)}"
        listed = " or ".join([", ".join(endings[:-1]), endings[-1]] if endings[1:] else endings)
        raise ValueError(
            f"A table must end in {listed}, or in {'one of them' if endings[1:] else 'it'} and {packings}. "
            f"Received: {path}. Rename it."
        )
    if ending == PARQUET and packing:
        raise ValueError(
            f"A .parquet, which is compressed inside, must not be compressed again. Received: {path}. Unpack it with "
            "gunzip."
        )
    if not Path(path).is_file():
        raise FileNotFoundError(f"A table must be a file. Received: {path}, which is not one. Check the path.")
    return ending


def read_lines(path: str | Path, packed_as: Sequence[str] = GZIP) -> Iterator[tuple[int, str]]:
    """Yield the number and text of each line; only a line feed ends one, since U+2028 and the like occur in texts."""
    path = str(path)
    for number, line in enumerate(read_byte_lines(path, packed_as), 1):
        yield number, _decode(path, number, line)


def abridge(names: Iterable[str], limit: int = 20, width: int = 40) -> str:
    """Join names on one line, truncating long ones and counting those beyond `limit`."""
    names = [" ".join(name.split()) for name in names]
    shown = [name if len(name) <= width else f"{name[:width]}..." for name in names[:limit]]
    return ", ".join(shown) + (f" and {len(names) - limit} more" if len(names) > limit else "")


def _parse_cells(path: str, delimiter: str | None) -> Iterator[Row]:
    """Yield the rows of a .csv; without a delimiter those of a .tsv, split at tabs, where a quote is a character."""
    if delimiter is None:
        for number, line in read_lines(path):
            yield number, line.split("\t")
        return
    # One limit for the process, 131,072 unless raised. A limit at all stops at a quote that nothing closes.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    reader = csv.reader((line + "\n" for _, line in read_lines(path)), strict=True, delimiter=delimiter)
    while True:
        number = reader.line_num + 1  # a quoted value may span several lines: name the first
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if "field limit" in str(error):
                raise ValueError(
                    f"{path}, row {number}: a value must have at most {MAX_LINE_BYTES >> 20} Mi characters. Received: "
                    "more, on several lines. Look for a quote that is not closed, or cut the value."
                ) from None
            raise ValueError(
                f"{path}, row {number}: a .csv must be quoted as in RFC 4180. Received: {error}. "
                'Write "" for a quote inside quotes, or give a .tsv.'
            ) from None
        yield number, values


def _is_blank(values: list) -> bool:
    """Return whether a row of a .tsv or .csv is a blank line."""
    return len(values) < 2 and not "".join(values).strip(" ")


def _parse_named(path: str, columns: list[str], num_texts: int, keeps_blanks: bool) -> Iterator[Row]:
    """Yield the rows of a .parquet or .jsonl; only the latter has blank lines."""
    rows: Iterator[tuple[int, dict | None]]
    if path.endswith(PARQUET):
        names = list_columns(path)
        for column in columns:
            _find_column(path, column, names)
        rows = read_parquet(path, columns, num_texts)
    else:
        lines = read_lines(path)
        rows = ((n, parse_object(f"{path}, row {n}", line) if line.strip() else None) for n, line in lines)
    for number, fields in rows:
        if fields is not None:
            values = pick_fields(f"{path}, row {number}", fields, columns)
            yield number, [*values[:num_texts], *map(spell_label, values[num_texts:])]
        elif keeps_blanks:
            yield number, [""] * len(columns)


def _pick_columns(
    path: str, rows: Iterator[Row], columns: list[str], header: bool, keeps_blanks: bool
) -> Iterator[Row]:
    names: list[str] = []
    for number, values in rows:
        if _is_blank(values):
            if keeps_blanks and (names or not header):
                yield number, [""] * len(columns)
            continue
        if not names:
            names = [name.strip() for name in values] if header else [str(place) for place in range(len(values))]
            remedy = (
                " If the first line is an example, put names above it, or turn `header` off for all tables of the task."
                if header
                else " Without a header give a number."
            )
            places = [_find_column(f"{path}, row {number}", column, names, remedy) for column in columns]
            if header:
                continue
        if len(values) != len(names):
            raise ValueError(
                f"{path}, row {number}: a row must have as many columns as the first one. "
                f"Received: {len(values)}, not {len(names)}. Look for a missing or extra separator."
            )
        yield number, [values[place] for place in places]


def _find_column(place: str, column: str, names: list[str], remedy: str = "") -> int:
    if column not in names:
        raise ValueError(
            f"{place}: the table must have the columns asked for. Received: {column!r}. Columns here: "
            f"{abridge(names)}.{remedy}"
        )
    if names.count(column) > 1:
        raise ValueError(
            f"{place}: a column must be named once. Received: {column!r}, {names.count(column)} times. Rename one."
        )
    return names.index(column)


def _decode(path: str, number: int, line: bytes) -> str:
    try:
        decoded = line.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}, row {number}: a table must be UTF-8. Received: byte 0x{line[error.start]:02x}. "
            f"{suggest_conversion(line, path)}"
        ) from None
    if "\0" in decoded:
        encoding = guess_utf16(line) if number == 1 else ""
        remedy = (
            suggest_conversion(line, path)
            if encoding
            else f"Copy the file again, or remove them with {rewrite(REMOVE_NUL, path)}."
        )
        raise ValueError(
            f"{path}, row {number}: a table must not hold NUL bytes. Received: one at character "
            f"{decoded.index(chr(0)) + 1}. {remedy}"
        )
    decoded = decoded.removesuffix("\n").removesuffix("\r")
    if number == 1 and decoded.count("\r") and not line.endswith(b"\n"):  # one line, the only one
        raise ValueError(
            f"{path}: a line must end in LF or CR LF. Received: a file of one line, with "
            f"{decoded.count(chr(13)):,} CR. Convert it, for example with {rewrite(END_LINES, path)}."
        )
    return decoded
