"""Read a text column of a Parquet file, and its sizes without PyArrow, which aborts at a footer that is damaged."""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from keras_bert_flow.text.corpus.inputs import whole_file

# Read the sizes of a column from the footer of a Parquet file.
#
# PyArrow's own objects for these sizes abort the process if a footer contradicts itself: the C++ exception crosses a
# function that Cython does not guard. Its data readers do raise.
#
# Source: Apache Parquet format, parquet.thrift (`FileMetaData`); Apache Thrift, thrift-compact-protocol.md.

MAGIC_BYTES = LENGTH_BYTES = 4  # the file ends with the length of the footer and `PAR1`
_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = 1, 2, 3, 7, 8, 9, 10, 11, 12
_INTEGERS = (4, 5, 6)  # of 16, 32 and 64 bits
_DEEPEST = 32  # nested structures; Parquet's schema needs 7
# Field numbers in parquet.thrift.
_ROW_GROUPS, _COLUMNS, _COLUMN_METADATA = 4, 1, 3
_PATH, _UNPACKED, _PACKED, _DATA_PAGE, _DICTIONARY_PAGE = 3, 6, 7, 9, 11


@dataclass(frozen=True)
class ColumnChunk:
    """The part of a column in one row group.

    Attributes:
        packed: bytes in the file.
        unpacked: bytes without compression.
        packed_dictionary: bytes of the dictionary page in the file; 0 without one.
    """

    packed: int
    unpacked: int
    packed_dictionary: int


def list_chunks(file: BinaryIO, path: str, name: str) -> list[ColumnChunk]:
    """Return the chunks of the column `name`, in the order of the row groups; the file position is restored.

    A nested column has a chunk for each of its parts.

    Raises:
        ValueError: the footer is not that of a Parquet file; the message names the file, `path`.
    """
    with whole_file(path):
        place = file.tell()
        file.seek(-MAGIC_BYTES - LENGTH_BYTES, io.SEEK_END)
        length = int.from_bytes(file.read(LENGTH_BYTES), "little")
        file.seek(-MAGIC_BYTES - LENGTH_BYTES - length, io.SEEK_END)
        footer = file.read(length)
        file.seek(place)
        try:
            groups = _Reader(footer).read_struct()[_ROW_GROUPS]
            chunks = []
            for column in (column[_COLUMN_METADATA] for group in groups for column in group[_COLUMNS]):
                if column[_PATH][0] == name.encode():
                    dictionary = column.get(_DICTIONARY_PAGE) or column[_DATA_PAGE]  # 0 means none as well
                    packed_dictionary = max(0, column[_DATA_PAGE] - dictionary)
                    chunks.append(ColumnChunk(column[_PACKED], column[_UNPACKED], packed_dictionary))
        except (IndexError, KeyError, TypeError) as error:
            raise ValueError(f"its footer is no description of a file ({error})") from error
    return chunks


@dataclass
class _Reader:
    """Reader of values in the compact protocol; a structure is a dictionary by field number."""

    content: bytes
    _at: int = field(init=False, default=0)
    _depth: int = field(init=False, default=0)

    def read_struct(self) -> dict[int, Any]:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise IndexError("nested too deeply")
        fields, number = {}, 0
        while header := self._read_byte():
            step, kind = header >> 4, header & 15
            number = number + step if step else self._read_integer()
            fields[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._read_value(kind)
        self._depth -= 1
        return fields

    def _read_value(self, kind: int) -> Any:
        if kind in _INTEGERS:
            return self._read_integer()
        if kind == _DOUBLE:
            return self._take(8)
        if kind == _BINARY:
            return self._take(self._read_varint())
        if kind in (_LIST, _SET):
            header = self._read_byte()
            size = self._read_varint() if header >> 4 == 15 else header >> 4
            return [self._read_value(header & 15) for _ in range(size)]  # each takes a byte, so the content bounds it
        if kind == _MAP:
            size = self._read_varint()
            kinds = self._read_byte() if size else 0
            return [(self._read_value(kinds >> 4), self._read_value(kinds & 15)) for _ in range(size)]
        if kind == _STRUCT:
            return self.read_struct()
        if kind in (_TRUE, _FALSE, _BYTE):  # a truth value in a list, where the kind does not hold it
            return self._read_byte()
        raise KeyError(kind)

    def _read_integer(self) -> int:
        value = self._read_varint()
        return (value >> 1) ^ -(value & 1)  # zigzag

    def _read_varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):  # 64 bits
            byte = self._read_byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise IndexError("a number of more than 64 bits")

    def _read_byte(self) -> int:
        self._at += 1
        return self.content[self._at - 1]

    def _take(self, count: int) -> bytes:
        if count > len(self.content) - self._at:
            raise IndexError("cut off")
        self._at += count
        return self.content[self._at - count : self._at]


_ROWS = 64  # in memory at once, unless rows may be long
_HELD_BYTES = 256 << 20  # of values in memory at once
_FREELY_UNPACKED_BYTES = 16 << 20
_MAX_PACKING_RATIO = 100  # above that size; text has 3 to 10
_BYTES = 1 << 20  # read from disk at once; the default is a row group's whole column


def read_column(file: BinaryIO, path: str, name: str) -> Iterator[bytes | None]:
    """Yield the values of a text column as stored bytes, None for null.

    Raises:
        ValueError: the file is damaged, or has no such text column; the message names it.
    """
    import pyarrow as pa  # comes with Apache Beam

    table = open_table(file, path, name)
    batches = table.iter_batches(batch_size=choose_rows(list_chunks(file, path, name), path), columns=[name])
    while True:
        with whole_file(path):
            batch = next(batches, None)
            if batch is None:
                return
            values = batch.column(0).cast(pa.large_binary()).to_pylist()  # whether it is UTF-8 is not checked
        yield from values


def open_table(file: BinaryIO, path: str, name: str):
    """Open a Parquet file that has the column, reading only its footer; errors as for `read_column`."""
    from pyarrow import parquet, types

    with whole_file(path):
        table = parquet.ParquetFile(file, buffer_size=_BYTES, pre_buffer=False, page_checksum_verification=True)
        schema = table.schema_arrow
    texts = []
    for column in schema:
        kind = column.type.value_type if types.is_dictionary(column.type) else column.type
        if types.is_string(kind) or types.is_large_string(kind):
            texts.append(column.name)
    if texts.count(name) != 1:
        raise ValueError(
            f"A Parquet file must have the column of text `{name}`, once. Received: {path}, whose columns of text are: "
            f"{', '.join(texts) or 'none'}. Name one by --set corpus.text_field=NAME."
        )
    return table


def choose_rows(chunks: Sequence[ColumnChunk], path: str) -> int:
    """Return how many rows to hold at once: each may be as long as the dictionary page.

    Raises:
        ValueError: the column expands to far more than text would.
    """
    longest = 0
    for chunk in chunks:
        if chunk.unpacked > max(_FREELY_UNPACKED_BYTES, _MAX_PACKING_RATIO * chunk.packed):
            raise ValueError(
                f"A Parquet column must decompress to at most {_MAX_PACKING_RATIO} times its size. Received: {path}, "
                f"{chunk.packed:,} bytes that decompress to {chunk.unpacked:,}. Write the file without compression if "
                "you trust it."
            )
        longest = max(longest, min(chunk.unpacked, _MAX_PACKING_RATIO * chunk.packed_dictionary))
    return max(1, min(_ROWS, _HELD_BYTES // max(longest, 1)))
