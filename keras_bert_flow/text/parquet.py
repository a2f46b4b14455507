"""Read one text column of a Parquet file, a few rows at a time; a page, mostly a megabyte, is the least it can load."""

from collections.abc import Iterator
from typing import BinaryIO

from keras_bert_flow.text.inputs import whole_file

_ROWS = 64  # held at once
_BYTES = 1 << 20  # read from the disk at once; by default it would be a row group's whole column


def read_column(file: BinaryIO, path: str, name: str) -> Iterator[bytes | None]:
    """Emit the values of a column of text as the bytes that lie there, None for a row without one.

    Raises:
        ValueError: the file is damaged, or has no such column of text; the message names it.
    """
    import pyarrow as pa  # comes with Apache Beam

    table = open_table(file, path, name)
    batches = table.iter_batches(batch_size=_ROWS, columns=[name])
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
