"""Tables in Parquet, written by PyArrow, are read as the same tables in JSON lines are."""

import gzip
import json
import sys
import tracemalloc

import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert_flow.cli.application import explain
from keras_bert_flow.tasks.formats.parquet_rows import list_columns, read_parquet, take_rows
from keras_bert_flow.tasks.formats.rows import read_rows, read_whole_rows
from keras_bert_flow.tasks.formats.tables import read_table
from keras_bert_flow.tasks.registry import make_task
from tests.tasks.files import message_of

TEXTS = ["a fine film", "so\nbad", "né", "中", "x" * 300]
KINDS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]


def write(path, options=None, **columns):
    parquet.write_table(pa.table(columns), path, **(options or {}))
    return path


def write_jsonl(path, **columns):
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_every_type_of_text_is_read(tmp_path, kind, compression):
    texts, labels = TEXTS * 40, [f"c{n % 3}" for n in range(200)]
    options = {"compression": compression, "row_group_size": 30}
    path = write(tmp_path / "t.parquet", options, label=pa.array(labels, kind), text=pa.array(texts, kind))
    table = read_table(path)
    assert (list(table.texts), list(table.labels), list(table.rows)) == (texts, labels, list(range(1, 201)))
    assert read_table(path, max_examples=7).texts == tuple(texts[:7])


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        ([1, 0, 2], pa.int8()),
        ([1, 0, 2], pa.uint64()),
        ([1.0, 0.5, 2.0], pa.float64()),
        ([1.0, 0.5, 2.0], pa.float16()),
        ([True, False, True], pa.bool_()),
        ([1, 0, 1], pa.dictionary(pa.int8(), pa.int64())),
    ],
    ids=str,
)
def test_numbers_and_booleans_are_spelt_as_in_json(tmp_path, labels, kind):
    path = write(tmp_path / "t.parquet", text=TEXTS[:3], y=pa.array(labels, kind))
    same = write_jsonl(tmp_path / "t.jsonl", text=TEXTS[:3], y=labels)
    assert read_table(path, label="y").labels == read_table(same, label="y").labels == tuple(map(json.dumps, labels))


def test_kinds_of_tasks_read_their_tables(tmp_path):
    lists = pa.array([["a", "b"], [], ["c"]], pa.large_list(pa.string()))
    path = write(
        tmp_path / "t.parquet", text=TEXTS[:3], text_pair=TEXTS[1:4], label=lists, y=[0.5, 1.0, 2.5], z=[0, 1, 1]
    )
    found = make_task("multi_label").read(path)
    assert [example.label for example in found] == [("a", "b"), (), ("c",)]
    assert [example.label for example in make_task("regression", label="y").read(path)] == [0.5, 1.0, 2.5]
    marked = make_task("multi_label", label_columns=("z",)).read(path)
    assert [example.label for example in marked] == [(), ("z",), ("z",)]
    pairs = make_task("sentence_embedding", text="text", text_pair="text_pair").read(path)
    assert [example.text_pair for example in pairs] == TEXTS[1:4]
    choice = {"context": "text", "question": None, "choices": ("text_pair", "text2")}
    floats = write(
        tmp_path / "c.parquet", text=TEXTS[:3], text_pair=TEXTS[1:4], text2=TEXTS[2:5], label=[0.0, 1.0, 1.0]
    )
    assert [example.label for example in make_task("multiple_choice", **choice).read(floats)] == [0, 1, 1]
    assert make_task("classification").read(path, has_labels=False)[0].label is None


def test_names_of_columns_may_hold_dots_and_repeat_parts(tmp_path):
    path = write(tmp_path / "t.parquet", **{"a": [1, 2], "a.b": ["x", "y"], "c": [{"d": 1}, {"d": 2}]})
    assert list(read_rows(path, ["a.b", "a"], header=True)) == [(1, ["x", "1"]), (2, ["y", "2"])]
    assert list(read_whole_rows(path)) == [(1, {"a": 1, "a.b": "x"}), (2, {"a": 2, "a.b": "y"})]
    assert list_columns(str(path)) == ["a", "a.b", "c"]


LATIN = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"], pa.binary()).buffers())


@pytest.mark.parametrize(
    ("columns", "parts"),
    [
        ({"text": ["a", None], "label": ["x", "y"]}, ["row 2", "column 'text' must hold text", "None"]),
        ({"text": ["a", "b"], "label": ["x", None]}, ["row 2", "column 'label' must hold text", "None"]),
        ({"text": ["a", " "], "label": ["x", "y"]}, ["row 2", "column 'text' must hold text"]),
        ({"text": ["a", "b"], "label": [1.0, float("nan")]}, ["row 2", "column 'label'", "nan"]),
        ({"text": ["a", "b"], "label": pa.nulls(2)}, ["row 1", "column 'label'", "None"]),
        ({"text": ["a\0", "b"], "label": [1, 2]}, ["row 1", "NUL"]),
        ({"text": LATIN, "label": ["x"]}, ["row 1", "column 'text' must be UTF-8", "0xe9"]),
        ({"text": [1, 2], "label": [1, 2]}, ["column 'text' must hold text. Received: a column of type int64"]),
        ({"text": [["a"], ["b"]], "label": [1, 2]}, ["column 'text'", "list<"]),
        ({"text": ["a"], "label": [{"a": 1}]}, ["'label' must hold text, numbers or booleans", "struct<a: int64>"]),
        ({"text": ["a"], "label": pa.array([[["a"]]])}, ["column 'label'", "list<element: list<"]),
        ({"text": ["a"], "label": pa.array([b"x"])}, ["column 'label'", "binary"]),
        ({"text": ["a"], "label": pa.array([1], pa.date32())}, ["column 'label'", "date32"]),
        ({"body": ["a"], "label": [1]}, ["'text'", "Columns here: body, label."]),
        ({"text": pa.array([], pa.string()), "label": pa.array([], pa.string())}, ["at least one example"]),
    ],
)  # fmt: skip
def test_what_no_task_can_read_is_refused_in_a_line(tmp_path, columns, parts):
    path = write(tmp_path / "t.parquet", **columns)
    message = message_of(ValueError, read_table, path)
    assert [part for part in [str(path), *parts] if part not in message] == [], message
    assert "\n" not in message


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], ["text", "text", "label"])
    parquet.write_table(table, tmp_path / "t.parquet")
    assert "'text', 2 times" in message_of(ValueError, read_table, tmp_path / "t.parquet")


def test_damaged_files_are_refused_in_a_line(tmp_path):
    path = write(
        tmp_path / "t.parquet", {"write_page_checksum": True}, text=[f"text {n}" for n in range(500)], label=[1] * 500
    )
    content = path.read_bytes()
    damaged = [content[:-1], content[: len(content) // 2], b"", b"PAR1", b"text,label\na,1\n"]
    damaged += [content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :] for at in range(0, len(content), 97)]
    refused = 0
    for each in damaged:
        path.write_bytes(each)
        try:
            read_table(path)
        except ValueError as error:
            refused += 1
            assert "t.parquet" in str(error) and "\n" not in str(error)
            assert "--skip-bad-inputs" not in str(error)  # which is of corpora
    assert refused > len(damaged) / 2
    path.write_bytes(b"")
    assert "must be a whole Parquet file" in message_of(ValueError, read_table, path)


def test_gzip_around_parquet_is_refused(tmp_path):
    (tmp_path / "t.parquet.gz").write_bytes(gzip.compress(b"PAR1"))
    assert "with gunzip" in message_of(ValueError, read_table, tmp_path / "t.parquet.gz")


def test_words_with_tags_are_not_read_from_parquet(tmp_path):
    path = write(tmp_path / "t.parquet", words=[["a"]], tags=[["O"]])
    assert "to_json" in message_of(ValueError, make_task("token_classification").read, path)


@pytest.mark.slow
def test_a_few_rows_are_in_memory(tmp_path):
    texts = ["".join(chr(97 + (n * k) % 26) for k in range(20_000)) for n in range(1000)]
    path = str(write(tmp_path / "t.parquet", {"compression": "none"}, text=texts, label=[1] * 1000))
    del texts
    tracemalloc.start()
    rows = read_parquet(path, ["text", "label"], 1)
    assert sum(len(fields["text"]) for _, fields in rows) == 20_000_000
    assert tracemalloc.get_traced_memory()[1] < 6_000_000
    tracemalloc.stop()


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_some_rows_are_taken_with_every_column(tmp_path, kind):
    columns = {
        "text": pa.array(TEXTS, kind),
        "meta": [{"a": n} for n in range(5)],
        "when": pa.array(range(5), pa.date32()),
    }
    path = write(tmp_path / "t.parquet", **columns)
    (tmp_path / "u.parquet").write_bytes(take_rows(str(path), [3, 1]))
    found, before = parquet.read_table(tmp_path / "u.parquet"), parquet.read_table(path)
    assert found.to_pylist() == [before.to_pylist()[3], before.to_pylist()[1]]
    assert found.column_names == before.column_names


def test_the_extra_that_brings_pyarrow_is_named(tmp_path, monkeypatch, capsys):
    path = write(tmp_path / "t.parquet", text=["a"], label=["x"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        read_table(path)
    assert explain(caught.value) == 2
    assert "pip install 'keras-bert-flow[beam]'" in capsys.readouterr().err
