import io
import random
import tracemalloc
from collections import Counter

import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert_flow.text.corpus.documents import ReadingRule, find_fault, read_documents
from keras_bert_flow.text.corpus.parquet import choose_rows, list_chunks

LINES = ReadingRule(split_lines=False)


def write(path, texts, kind=None, name="text", **options):
    table = pa.table({"other": pa.array(range(len(texts))), name: pa.array(texts, kind or pa.string())})
    parquet.write_table(table, path, **options)
    return str(path)


def read(path, rule=LINES):
    counts = Counter()
    documents = list(read_documents(path, rule, counts))
    sizes = {name: counts.pop(name) for name in list(counts) if name.startswith("bytes_")}
    assert sizes.pop("bytes_read") == sum(sizes.values())
    return [document.sentences for document in documents], counts


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd", "lz4", "brotli"])
@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_documents_of_parquet_are_rows(kind, compression, tmp_path):
    texts = ["a\nb", "c é中"] * 300
    path = write(tmp_path / "a.parquet", texts, kind, compression=compression, row_group_size=70)
    found, counts = read(path)
    assert found == [("a", "b"), ("c é中",)] * 300
    assert counts == {"lines_read": 600, "lines_used": 600, "documents": 600}


def test_rows_are_used_or_blank_or_rejected(tmp_path):
    latin = pa.array([b"caf\xe9", b"fine", None, b" \n", b"", b"x" * 101, b"y" * 100], pa.binary())
    texts = pa.Array.from_buffers(pa.string(), len(latin), latin.buffers())  # bytes that only claim to be UTF-8
    parquet.write_table(pa.table({"text": texts}), tmp_path / "a.parquet")
    found, counts = read(str(tmp_path / "a.parquet"), ReadingRule(split_lines=False, max_line_bytes=100))
    assert found == [("fine",), ("y" * 100,)]
    rejected = {"lines_rejected_not_utf8": 1, "lines_rejected_null": 1, "lines_rejected_too_long": 1}
    assert counts == {"lines_read": 7, "lines_used": 2, "lines_blank": 2, "documents": 2} | rejected
    with pytest.raises(ValueError, match=r"must be UTF-8\. Received: line 1 of .*a\.parquet"):
        read(str(tmp_path / "a.parquet"), ReadingRule(strict=True))


def test_column_may_have_another_name(tmp_path):
    path = write(tmp_path / "a.parquet", ["a"], name="body")
    assert read(path, ReadingRule(text_field="body"))[0] == [("a",)]
    for name in ("text", "other"):
        with pytest.raises(ValueError, match=f"column of text `{name}`, once.*a.parquet, whose.*: body. Name one by"):
            read(path, ReadingRule(text_field=name))


def test_rows_have_the_ids_of_the_same_text_in_jsonl(tmp_path):
    texts = ["One is.\nTwo is.", "Three is."]
    path = write(tmp_path / "a.parquet", texts)
    (tmp_path / "a.jsonl").write_text('{"text": "One is.\\nTwo is."}\n{"text": "Three is."}\n')
    found = [list(read_documents(str(tmp_path / name), ReadingRule())) for name in ("a.parquet", "a.jsonl")]
    assert found[0] == found[1]
    assert find_fault(path, LINES) is None


def test_damaged_parquet_names_the_file(tmp_path):
    whole = io.BytesIO()
    texts = pa.array([f"some text {number}" for number in range(500)])
    parquet.write_table(pa.table({"text": texts}), whole, write_page_checksum=True, compression="zstd")
    content = whole.getvalue()
    damaged = [content[:-1], content[: len(content) // 2], b"", b"PAR1", b"no parquet at all"]
    for place in range(4, len(content) - 4, 97):
        flipped = bytearray(content)
        flipped[place] ^= 255
        damaged.append(bytes(flipped))
    path = tmp_path / "a.parquet"
    refused = 0
    for part in damaged:
        path.write_bytes(part)
        try:
            found, _ = read(str(path))
        except ValueError as error:
            assert "a.parquet" in str(error) and "\n" not in str(error)
            assert find_fault(str(path), LINES)[0] == "damaged"
            refused += 1
        else:  # a flip in what is not the text, such as the version of the writer
            assert len(found) == 500 and find_fault(str(path), LINES) is None
    assert refused > len(damaged) // 2


def test_parquet_is_read_a_few_rows_at_a_time(tmp_path):
    text = "some words and " * 7000  # 105 kB
    texts = [f"{number} {text}" for number in range(400)]
    path = write(tmp_path / "a.parquet", texts, compression="none", write_batch_size=8)  # pages of a megabyte
    before = pa.total_allocated_bytes()
    peak = 0
    tracemalloc.start()
    for _ in read_documents(path, LINES):
        peak = max(peak, pa.total_allocated_bytes() - before)
    _, python_peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak + python_peak < 30_000_000  # of a row group of 42 MB


def test_rows_that_refer_to_one_long_value_are_refused(tmp_path):
    """1,000 rows of 50 MB in 2 kB: a batch of 64 would take 3 GB."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), pa.array(["x" * (50 << 20)]))
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pa.table({"text": texts}), path, compression="zstd", dictionary_pagesize_limit=1 << 30)
    with pytest.raises(ValueError, match="must decompress to at most 100 times its size"):
        read(path)
    assert find_fault(path, LINES).reason == "damaged"


@pytest.mark.parametrize(("length", "most"), [(100, 64), (8 << 20, 32), (16 << 20, 16)])
def test_fewer_rows_are_held_where_they_may_be_long(tmp_path, length, most):
    """Texts that do not compress, so that the page of values is as long as they are."""
    text = random.Random(0).randbytes(length // 2).hex() if length > 100 else "x" * length
    path = str(tmp_path / "a.parquet")
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * 3, pa.int32()), pa.array([text], pa.large_string()))
    parquet.write_table(pa.table({"text": texts}), path, compression="none", dictionary_pagesize_limit=1 << 30)
    with open(path, "rb") as file:
        assert choose_rows(list_chunks(file, path, "text"), path) in (most, most - 1)
