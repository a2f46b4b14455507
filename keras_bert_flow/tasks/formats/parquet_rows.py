"""Read rows of a task's Parquet table, a few at a time, and write some of them to another."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import BinaryIO

from keras_bert_flow.text.corpus.inputs import DAMAGED_ERRORS
from keras_bert_flow.text.corpus.parquet import choose_rows, list_chunks

TEXT, NUMBER, LIST = "text", "numbers or booleans", "lists of these"  # what a column may hold
_BYTES = 1 << 20  # read from disk at once; the default is a row group's whole column


def read_parquet(path: str, columns: Sequence[str] | None = None, num_texts: int = 0) -> Iterator[tuple[int, dict]]:
    """Yield the number of each row, from 1, and its values by column; None for null.

    At most 64 rows are in memory, and a page of each column.

    Args:
        columns: None: every column of texts, numbers, booleans or lists of these.
        num_texts: number of `columns`, the first ones, that must be of texts; the others may be of numbers, too.
    Raises:
        ValueError: the file is damaged, or a column is of another type.
    """
    import pyarrow as pa  # comes with Apache Beam

    with open(path, "rb") as file:
        table, schema = _open(file, path)
        if columns is None:
            columns = [field.name for field in schema if _kind_of(pa, field.type)]
        for place, column in enumerate(columns):
            allowed = (TEXT,) if place < num_texts else (TEXT, NUMBER, LIST)
            field = schema.field(column)
            if _kind_of(pa, field.type) not in allowed:
                raise ValueError(
                    f"{path}: column {field.name!r} must hold {', '.join(allowed)}. Received: a column of type "
                    f"{field.type}. Name another column, or convert this one."
                )
        chunks = []
        for column in columns:
            with _whole(path):
                chunks += list_chunks(file, path, column)
        batches = table.iter_batches(batch_size=choose_rows(chunks, path), columns=columns, use_threads=False)
        number = 0
        while columns:
            with _whole(path):
                batch = next(batches, None)
            if batch is None:
                return
            read = [_read_values(pa, path, column, batch, number) for column in columns]
            for values in zip(*read, strict=True):
                number += 1
                yield number, dict(zip(columns, values, strict=True))


def list_columns(path: str) -> list[str]:
    """Return the names of all columns of a Parquet file; ValueError if it is damaged."""
    with open(path, "rb") as file:
        return _open(file, path)[1].names


def take_rows(path: str, rows: Sequence[int]) -> bytes:
    """Return a Parquet file with some rows of another one, with all its columns.

    Args:
        rows: indices, from 0.
    """
    import pyarrow as pa
    from pyarrow import parquet

    sink = pa.BufferOutputStream()
    with _whole(path), open(path, "rb") as file:
        table = parquet.read_table(file)
        for place, field in enumerate(table.schema):
            if pa.types.is_string_view(field.type):  # `take` has no kernel for these
                as_text = pa.field(field.name, pa.large_string(), field.nullable, field.metadata)
                table = table.set_column(place, as_text, table.column(place).cast(pa.large_string()))
        parquet.write_table(table.take(pa.array(rows, pa.int64())), sink)
    return sink.getvalue().to_pybytes()


def _open(file: BinaryIO, path: str):
    """Return a Parquet file, of which only the footer is read, and its schema."""
    from pyarrow import parquet

    with _whole(path):
        table = parquet.ParquetFile(file, buffer_size=_BYTES, pre_buffer=False, page_checksum_verification=True)
        return table, table.schema_arrow


def _kind_of(pa, kind) -> str:
    """Return what a column holds; "" if a task cannot read it."""
    types = pa.types
    if types.is_dictionary(kind):
        kind = kind.value_type
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind) or types.is_null(kind):
        return TEXT
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return NUMBER
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return LIST if is_list and _kind_of(pa, kind.value_type) in (TEXT, NUMBER) else ""


def _read_values(pa, path: str, column: str, batch, before: int) -> list:
    """Return the values of a column of a batch; texts are decoded here, so that an error can name the row.

    Args:
        before: number of rows before the batch.
    """
    array = batch.column(batch.schema.get_field_index(column))
    if _kind_of(pa, array.type) != TEXT or pa.types.is_null(array.type):
        with _whole(path):
            return array.to_pylist()
    with _whole(path):
        values = array.cast(pa.large_binary()).to_pylist()
    texts: list[str | None] = []
    for number, value in enumerate(values, before + 1):
        try:
            texts.append(None if value is None else value.decode())
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}, row {number}: column {column!r} must be UTF-8. Received: byte 0x{value[error.start]:02x}. "
                "Write the file again from texts that are."
            ) from None
    return texts


@contextmanager
def _whole(path: str) -> Iterator[None]:
    """Convert errors while reading an open file into one-line errors that name it."""
    try:
        yield
    except (*DAMAGED_ERRORS, NotImplementedError, LookupError, TypeError) as error:  # as pyarrow raises them
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"A .parquet must be a whole Parquet file. Received: {path}, damaged: {reason}. Fetch or write it again."
        ) from None
