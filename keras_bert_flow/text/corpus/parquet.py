"""Read one text column of a Parquet file, a few rows at a time; it loads at least a page, usually a megabyte."""

from collections.abc import Iterator, Sequence
from typing import BinaryIO

from keras_bert_flow.text.corpus.inputs import whole_file
from keras_bert_flow.text.corpus.parquet_footer import ColumnChunk, read_chunks

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
    from pyarrow import parquet

    with whole_file(path):
        table = parquet.ParquetFile(file, buffer_size=_BYTES, pre_buffer=False, page_checksum_verification=True)
        schema = table.schema_arrow
    _check_column(schema, path, name)
    return table


def list_chunks(file: BinaryIO, path: str, name: str) -> list[ColumnChunk]:
    """Return the sizes of a column in each row group; errors as for `read_column`."""
    with whole_file(path):
        return read_chunks(file, name)


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


def _check_column(schema, path: str, name: str) -> None:
    import pyarrow as pa

    texts = [field.name for field in schema if _is_text(pa, field.type)]
    if texts.count(name) != 1:
        raise ValueError(
            f"A Parquet file must have the column of text `{name}`, once. Received: {path}, whose columns of text are: "
            f"{', '.join(texts) or 'none'}. Name one by --set corpus.text_field=NAME."
        )


def _is_text(pa, kind) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)
