"""Read one text column of a Parquet file, a few rows at a time; a page, mostly a megabyte, is the least it can load."""

from collections.abc import Iterator
from typing import BinaryIO

from keras_bert_flow.text.inputs import whole_file

_ROWS = 64  # held at once, unless a row may be long
_HELD_BYTES = 256 << 20  # of the values held at once
_FREELY_UNPACKED_BYTES = 16 << 20
_MAX_PACKING_RATIO = 100  # of what unpacks to more than that; text has 3 to 10
_BYTES = 1 << 20  # read from the disk at once; by default it would be a row group's whole column


def read_column(file: BinaryIO, path: str, name: str) -> Iterator[bytes | None]:
    """Emit the values of a column of text as the bytes that lie there, None for a row without one.

    Raises:
        ValueError: the file is damaged, or has no such column of text; the message names it.
    """
    import pyarrow as pa  # comes with Apache Beam

    table = open_table(file, path, name)
    batches = table.iter_batches(batch_size=choose_rows(table.metadata, path, name), columns=[name])
    while True:
        with whole_file(path):
            batch = next(batches, None)
            if batch is None:
                return
            values = batch.column(0).cast(pa.large_binary()).to_pylist()  # whether it is UTF-8 was never looked at
        yield from values


def open_table(file: BinaryIO, path: str, name: str):
    """Open a Parquet file that has the column; errors as of `read_column`. Only the footer is read."""
    from pyarrow import parquet

    with whole_file(path):
        table = parquet.ParquetFile(file, buffer_size=_BYTES, pre_buffer=False, page_checksum_verification=True)
        schema = table.schema_arrow
    _check_column(schema, path, name)
    return table


def choose_rows(metadata, path: str, name: str) -> int:
    """Return how many rows to hold at once: each may be as long as the page of values that rows refer to.

    Raises:
        ValueError: the column unpacks to far more than text does.
    """
    longest = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for chunk in (group.column(place) for place in range(group.num_columns)):
            if chunk.path_in_schema != name:
                continue
            packed, unpacked = chunk.total_compressed_size, chunk.total_uncompressed_size
            if unpacked > max(_FREELY_UNPACKED_BYTES, _MAX_PACKING_RATIO * packed):
                raise ValueError(
                    f"A Parquet column must unpack to at most {_MAX_PACKING_RATIO} times its size. Received: {path}, "
                    f"{packed:,} bytes that unpack to {unpacked:,}. Write the file without compression if you trust it."
                )
            if chunk.has_dictionary_page:
                packed_page = chunk.data_page_offset - chunk.dictionary_page_offset
                longest = max(longest, min(unpacked, _MAX_PACKING_RATIO * max(packed_page, 0)))
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
