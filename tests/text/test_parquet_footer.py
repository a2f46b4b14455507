"""Sizes of columns as PyArrow reads them, and footers on which PyArrow's own objects abort the process."""

import io
import random

import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert_flow.text.corpus.documents import ReadingRule, find_fault
from keras_bert_flow.text.corpus.parquet import ColumnChunk, list_chunks

TABLE = pa.table(
    {
        "text": pa.array([None if n % 9 == 0 else f"some text {n % 7} " * (n % 11) for n in range(3000)]),
        "number": pa.array(range(3000)),
        "nested": pa.array([[{"text": "x", "share": 0.5, "flag": n % 2 == 0}] for n in range(3000)]),
        "when": pa.array(range(3000), pa.timestamp("us", "UTC")),
    }
).replace_schema_metadata({"key": "value"})


def pack(**options):
    file = io.BytesIO()
    parquet.write_table(TABLE, file, **options)
    return file


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"row_group_size": 100},
        {"use_dictionary": False, "compression": "zstd"},
        {"write_statistics": False, "row_group_size": 1000},
        {"version": "1.0", "data_page_version": "2.0", "compression": "gzip"},
        {"write_page_index": True, "store_schema": False, "sorting_columns": [parquet.SortingColumn(1)]},
    ],
)
def test_chunks_have_the_sizes_of_pyarrow(options):
    file = pack(**options)
    file.seek(5)
    for name in ("text", "number", "when"):
        metadata = parquet.ParquetFile(io.BytesIO(file.getvalue())).metadata
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        columns = [group.column(place) for group in groups for place in range(group.num_columns)]
        expected = [
            ColumnChunk(
                column.total_compressed_size,
                column.total_uncompressed_size,
                column.data_page_offset - column.dictionary_page_offset if column.has_dictionary_page else 0,
            )
            for column in columns
            if column.path_in_schema == name
        ]
        assert list_chunks(file, "a.parquet", name) == expected
        assert file.tell() == 5
    assert list_chunks(file, "a.parquet", "share") == []  # is within another column


@pytest.mark.slow
def test_cut_and_mutated_footers_are_refused_or_read():
    content, chance, refused = pack(row_group_size=500).getvalue(), random.Random(3), 0
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    for _ in range(2000):
        damaged = bytearray(content)
        damaged[chance.randrange(start, len(content) - 8)] = chance.choice((0, 0x15, 0x1C, 0x7F, 0xFF))
        try:
            list_chunks(io.BytesIO(damaged), "a.parquet", "text")
        except ValueError as error:
            refused += 1
            assert "\n" not in str(error)
    assert refused > 100
    for nested in (b"\x1c", b"\x19\x1c"):  # structures in structures, with or without lists between
        with pytest.raises(ValueError, match="footer"):
            content = nested * 5000 + (5000 * len(nested)).to_bytes(4, "little") + b"PAR1"
            list_chunks(io.BytesIO(content), "a.parquet", "text")


def test_footer_that_contradicts_itself_is_one_line(tmp_path):
    """The schema says that each row has a value, and the statistics that some have none."""
    file = io.BytesIO()
    parquet.write_table(pa.table({"text": ["A line.", None, ""] * 9}), file)
    optional, required = b"\x25\x02\x18\x04text", b"\x25\x00\x18\x04text"
    assert file.getvalue().count(optional) == 1
    (tmp_path / "a.parquet").write_bytes(file.getvalue().replace(optional, required))
    fault = find_fault(str(tmp_path / "a.parquet"), ReadingRule()).message
    assert fault.startswith("A corpus file must be whole.") and "histogram size mismatch" in fault
