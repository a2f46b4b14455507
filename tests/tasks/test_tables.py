import csv
import gzip
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert_flow.tasks.formats import rows
from keras_bert_flow.tasks.formats.tables import (
    TaskTable,
    class_names,
    describe_heading,
    describe_lookalikes,
    describe_rare,
    number_labels,
    read_columns,
    read_table,
)
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.training.finetuning.task_data import list_remarks
from tests.tasks.files import DATA, message_of, needs_data, write


def table_of(*labels: str) -> TaskTable:
    return TaskTable("t.tsv", tuple(f"text {i}" for i in range(len(labels))), None, labels)


def label_ids(table: TaskTable, names: tuple[str, ...]) -> np.ndarray:
    places = [f"{table.path}, row {row}" for row in table.rows or range(1, len(table.labels) + 1)]
    return number_labels(table.labels, places, names)


@needs_data
@pytest.mark.parametrize(
    ("name", "columns", "train", "dev", "labels"),
    [
        ("sst2", {"text": "0", "label": "1", "header": False}, 6920, 872, ("0", "1")),
        ("cola", {"text": "3", "label": "1", "header": False}, 8551, 1043, ("0", "1")),
        ("stsb", {"text": "sentence1", "text_pair": "sentence2", "label": "score"}, 5749, 1500, None),
    ],
)
def test_read_table_reads_every_row_of_real_tables(name, columns, train, dev, labels):
    tables = [read_table(Path(DATA) / name / f"{part}.tsv", **columns) for part in ("train", "dev")]
    assert [len(table.texts) for table in tables] == [train, dev]
    assert all((table.text_pairs is not None) == ("text_pair" in columns) for table in tables)
    if labels:
        assert class_names(tables[0].labels, "train") == labels
        assert label_ids(tables[1], labels).shape == (dev,)


@needs_data
def test_read_table_keeps_bare_quotes_of_glue():
    table = read_table(Path(DATA) / "stsb/train.tsv", "sentence1", "sentence2", "score")
    raw = (Path(DATA) / "stsb/train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    assert any('"' in text for text in table.texts)
    assert list(table.texts) == [line.split("\t")[7] for line in raw]
    assert list(table.text_pairs) == [line.split("\t")[8] for line in raw]


def test_tsv_knows_no_quoting(tmp_path):
    path = write(tmp_path, "t.tsv", 'text\tlabel\n"He said\t1\nso" he said\t0\n')
    assert read_table(path).texts == ('"He said', 'so" he said')


def test_csv_is_quoted_as_in_rfc_4180(tmp_path):
    path = write(tmp_path, "t.csv", 'label,text\r\n1,"a, ""b""\r\nand c"\r\n\r\n0,d\r\n')
    assert read_table(path) == TaskTable(str(path), ('a, "b"\nand c', "d"), None, ("1", "0"), (2, 5))


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_csv_of_a_spreadsheet_with_another_delimiter_is_read(tmp_path, caplog, delimiter):
    written = [("text", "label"), (f"a{delimiter}b", 1), ("it costs 1,5", 0), ("two\nlines", 1), ('"quoted"', 0)]
    with (tmp_path / "t.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(written)
    table = read_table(tmp_path / "t.csv")
    assert [(text, int(label)) for text, label in zip(table.texts, table.labels, strict=True)] == written[1:]
    assert f"columns are separated by {delimiter!r}" in caplog.text
    by_number = read_table(tmp_path / "t.csv", text="0", label="1", header=False)
    assert by_number.texts == tuple(text for text, _ in written)


@pytest.mark.parametrize(
    "content",
    [
        "text\na; b\nc; d\n",  # the header has none
        "text; more\na; b\nc\n",  # not every row has it
        "text,label\na;b,1\nc;d,0\n",
    ],
)
def test_other_characters_of_a_csv_are_text(tmp_path, caplog, content):
    path = write(tmp_path, "t.csv", content)
    name = content.splitlines()[0].split(",")[0]
    texts = [values[0] for _, values in rows.read_rows(path, [name], True, 0)]
    assert texts == [line.split(",")[0] for line in content.splitlines()[1:]] and not caplog.text


def test_jsonl_takes_named_fields_and_spells_labels(tmp_path):
    rows = [
        {"b": "x", "a": "p", "y": 1},
        {"a": "q", "b": "z", "y": True, "more": None},
        {"a": "r", "b": "w", "y": " n "},
    ]
    path = write(tmp_path, "t.jsonl", "\n\n".join(map(json.dumps, rows)))
    expected = TaskTable(str(path), ("p", "q", "r"), ("x", "z", "w"), ("1", "true", "n"), (1, 3, 5))
    assert read_table(path, "a", "b", "y", header=False) == expected


@pytest.mark.parametrize("ending", ["tsv", "csv"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("last", [True, False])
def test_read_table_takes_every_way_to_end_lines(tmp_path, ending, mark, newline, last):
    separator = {"tsv": "\t", "csv": ","}[ending]
    lines = [["text", "label"], ["Grüße", "b"], [""], ["  "], ["a\u2028b\x85c", " a "]]
    content = newline.join(separator.join(line) for line in lines) + newline * last
    path = write(tmp_path, f"t.{ending}", mark + content.encode())
    assert read_table(path) == TaskTable(str(path), ("Grüße", "a\u2028b\x85c"), None, ("b", "a"), (2, 5))


@pytest.mark.parametrize("content", ["text\tlabel\na\t1\nb\t0\n", "\ufefftext\tlabel\na\t1\nb\t0"])
def test_read_table_unpacks_gzip(tmp_path, content):
    path = write(tmp_path, "t.tsv.gz", gzip.compress(content.encode()))
    assert read_table(path).texts == ("a", "b")


def test_read_table_picks_columns_by_number_without_header(tmp_path):
    path = write(tmp_path, "t.tsv", "x\t1\ta\nx\t0\tb")
    expected = TaskTable(str(path), ("a", "b"), None, ("1", "0"), (1, 2))
    assert read_table(path, text="2", label="1", header=False) == expected


def test_read_table_stops_after_max_examples(tmp_path):
    path = write(tmp_path, "t.tsv", "text\tlabel\na\t1\nb\t0\nbroken\n")
    assert read_table(path, max_examples=2).texts == ("a", "b")
    assert "row 4" in message_of(ValueError, read_table, path, max_examples=3)


@pytest.mark.parametrize(
    ("name", "content", "options", "parts"),
    [
        ("t.txt", "text\tlabel\na\t1\n", {}, [".tsv, .csv, .jsonl or .parquet"]),
        ("t.gz", "", {}, [".tsv, .csv, .jsonl or .parquet"]),
        ("t.tsv", "", {}, ["at least one example"]),
        ("t.tsv", "\n \n", {}, ["at least one example"]),
        ("t.tsv", "text\tlabel\n", {}, ["at least one example"]),
        ("t.jsonl", "\n", {}, ["at least one example"]),
        ("t.tsv", "\nsentence\tlabel\na\t1\n", {}, ["row 2", "'text'", "sentence, label", "`header`"]),
        ("t.tsv", "a\t1\n", {"header": False}, ["row 1", "'text'", "Columns here: 0, 1", "number"]),
        ("t.csv", '"a\nb",label\na,1\n', {}, ["row 1", "'text'", "a b, label"]),
        ("t.jsonl", '{"text": "a", "label": 1}\n{"text": "a"}\n', {}, ["row 2", "'label'", "Columns here: text"]),
        ("t.tsv", "text\ttext\tlabel\na\tb\t1\n", {}, ["row 1", "'text', 2 times"]),
        ("t.tsv", "text\tlabel\na\t1\nb\t1\tc\n", {}, ["row 3", "Received: 3, not 2"]),
        ("t.tsv", "a\t1\nb\n", {"text": "0", "label": "1", "header": False}, ["row 2", "Received: 1, not 2"]),
        ("t.csv", 'text,label\n"a\nb",1\nc\n', {}, ["row 4", "Received: 1, not 2"]),
        ("t.tsv", "text\tlabel\na\t1\n \t1\n", {}, ["row 3", "'text'", "must hold text"]),
        ("t.tsv", "text\tlabel\na\t1\n\nb\t\n", {}, ["row 4", "'label'", "must hold text"]),
        ("t.tsv", "text\tlabel\na\t1\n\t\n", {}, ["row 3", "'text'", "must hold text"]),
        ("t.jsonl", '{"text": null, "label": 1}', {}, ["row 1", "'text'", "None"]),
        ("t.jsonl", '{"text": 5, "label": 1}', {}, ["row 1", "'text'", "Received: 5"]),
        ("t.jsonl", '{"text": "a", "label": null}', {}, ["row 1", "'label'", "None"]),
        ("t.jsonl", '{"text": "a\\ud800", "label": 1}', {}, ["row 1", "'text'", "Unicode", "\\ud800"]),
        ("t.jsonl", '{"text": "a"\n', {}, ["row 1", "one JSON object", '{"text": "a"']),
        ("t.jsonl", "[1]\n", {}, ["row 1", "one JSON object", "[1]"]),
        ("t.jsonl", "[" * 100_000, {}, ["row 1", "one JSON object", "[[[..."]),
        ("t.tsv", b"text\tlabel\na\t1\nb\xe9\t1\n", {}, ["row 3", "UTF-8", "0xe9", "iconv -f ENCODING -t UTF-8"]),
        ("t.tsv", "text\tlabel\na\t1\n".encode("utf-16"), {}, ["row 1", "UTF-8", "0xff", "iconv -f UTF-16 -t UTF-8"]),
        ("t.tsv", "text\tlabel\ra\t1\rb\t0\r", {}, ["LF or CR LF", "2 CR", "tr"]),
        ("t.csv", 'text,label\na,1\n"b,1\nc,1\n', {}, ["row 3", "RFC 4180"]),
        ("t.csv", 'text,label\n"b"c,1\n', {}, ["row 2", "RFC 4180"]),
        ("t.tsv.gz", b"text\tlabel\na\t1\n", {}, ["whole gzip"]),
        ("t.tsv.gz", gzip.compress(b"text\tlabel\na\t1\n" * 1000)[:-20], {}, ["whole gzip"]),
        ("t.tsv", "text\tlabel\na\t1\n", {"max_examples": 0}, ["`max_examples`", "0"]),
        ("t.tsv", "text\tlabel\na\t1\n", {"label": "text"}, ["different columns", "text, text"]),
        ("t.tsv", "text\tlabel\na\t1\n", {"text_pair": "text"}, ["different columns"]),
    ],
)
def test_read_table_refuses(tmp_path, name, content, options, parts):
    path = write(tmp_path, name, content)
    message = message_of(ValueError, read_table, path, **options)
    assert [part for part in parts if part not in message] == [], message
    assert len(message) < 300 + 2 * len(str(path))


@pytest.mark.parametrize("name", ["absent.tsv", "folder.tsv"])
def test_read_table_needs_a_file(tmp_path, name):
    (tmp_path / "folder.tsv").mkdir()
    assert name in message_of(FileNotFoundError, read_table, tmp_path / name)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (("10", "9", "-1", "9"), ("-1", "9", "10")),
        (("10", "9", "b"), ("10", "9", "b")),
        (("1.5", "0.25", "10.0"), ("0.25", "1.5", "10.0")),
        (("1_0", "9"), ("1_0", "9")),  # int() would take it for ten
        (("no", "Yes", "no"), ("Yes", "no")),
    ],
)
def test_class_names_are_sorted(labels, names):
    assert class_names(labels, "train.tsv") == names


def test_class_names_refuse_a_single_label():
    message = message_of(ValueError, class_names, ("yes", "yes"), "train.tsv")
    assert "train.tsv" in message and "'yes'" in message


def test_label_ids_number_labels_by_their_name():
    ids = label_ids(table_of("10", "9", "-1", "9"), ("-1", "9", "10"))
    assert ids.dtype == np.int32
    assert ids.tolist() == [2, 1, 0, 1]


def test_label_ids_refuses_a_label_that_training_never_had(tmp_path):
    path = write(tmp_path, "dev.csv", 'text,label\n"a\nb",yes\n\nc,maybe\n')
    message = message_of(ValueError, label_ids, read_table(path), ("no", "yes"))
    assert f"{path}, row 5" in message and "'maybe'" in message and "Known labels: no, yes." in message
    message = message_of(ValueError, label_ids, table_of("a", "z"), tuple(f"label {i}" for i in range(99)))
    assert "t.tsv, row 1" in message and "and 79 more" in message


@pytest.mark.parametrize(
    ("labels", "parts"),
    [
        (["x", "x\ufeff"], ["'x' (2 rows) and 'x\\ufeff' (1 rows) look the same"]),
        (["caf\u00e9", "cafe\u0301"], ["look the same"]),
        (["a\u00a0b", "a b"], ["look the same"]),
        (["x\u200b", "x"], ["look the same"]),
        (["Positive", "positive", "POSITIVE"], ["'positive' (1 rows) and 'POSITIVE' (1 rows) differ only in case"]),
        (
            ["1", "1.0", "true", "0"],
            ["'1' (2 rows) and '1.0' (1 rows) and 'true' (1 rows) differ only in case or in how"],
        ),
        (["yes", "no", "1", "2", "nan", "-"], []),
    ],
)
def test_labels_that_look_alike_are_told(labels, parts):
    line = describe_lookalikes(Counter([labels[0], *labels]))
    assert all(part in line for part in parts) and bool(line) == bool(parts) and "\n" not in line


def test_a_class_that_is_a_heading_is_told():
    line = describe_heading({"pos": 4, "neg": 3, "Label": 1}, has_header=False)
    assert "class 'Label' with a single row" in line and "task.header=true" in line
    assert describe_heading({"pos": 4, "rare": 1, "topic": 2}) == ""
    assert "task.header" not in describe_heading({"pos": 4, "label": 1})


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl", "parquet"])
def test_a_class_that_is_a_heading_is_told_of_every_format(tmp_path, ending):
    path, rows = tmp_path / f"t.{ending}", [("a b", "pos"), ("c d", "neg"), ("text", "label"), ("e f", "pos")]
    if ending == "parquet":
        parquet.write_table(pa.table(dict(zip(("text", "label"), zip(*rows, strict=True), strict=True))), path)
    elif ending == "jsonl":
        path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    else:
        separator = {"tsv": "\t", "csv": ","}[ending]
        path.write_text("".join(separator.join(row) + "\n" for row in [("text", "label"), *rows]))
    task, has_names = make_task("classification"), ending in ("jsonl", "parquet")
    examples = task.read(path)
    (remark,) = list_remarks(task.learn(examples), (), path, examples, {})
    assert "class 'label' with a single row" in remark and "task.header" not in remark
    if not has_names:
        task = make_task("classification", text="0", label="1", header=False)
        path.write_text(path.read_text().replace(f"text{separator}label\n", "", 1))
        examples = task.read(path)
        (remark,) = list_remarks(task.learn(examples), (), path, examples, {})
        assert "task.header=true" in remark


@pytest.mark.parametrize(
    ("received", "known", "part"),
    [
        ("1.0", ("0", "1"), "It is '1' in another spelling: write both tables alike."),
        ("true", ("0", "1"), "It is '1' in another spelling"),
        ("1", ("false", "true"), "It is 'true' in another spelling"),
        ("1.0", ("1", "true"), "Correct it, or add such examples"),  # either may be meant
        ("2", ("0", "1"), "Correct it, or add such examples"),
    ],
)
def test_a_label_in_another_spelling_is_named(received, known, part):
    assert part in message_of(ValueError, label_ids, table_of(received), known)


def test_nan_is_no_label(tmp_path):
    path = write(tmp_path, "t.jsonl", '{"text": "a", "label": 1.5}\n{"text": "b", "label": NaN}\n')
    message = message_of(ValueError, read_table, path)
    assert "row 2" in message and "'label' must hold text. Received: nan" in message


def test_long_values_of_csv_are_read(tmp_path):
    long = "word " * 40_000  # 200,000 characters, above the limit of Python's reader
    path = write(tmp_path, "t.csv", f'text,label\n"{long}",a\nb,c\n')
    assert read_table(path).texts == (long, "b")


def test_a_quote_that_is_never_closed_does_not_fill_the_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(rows, "MAX_LINE_BYTES", 1000)
    before = csv.field_size_limit(1000)
    try:
        path = write(tmp_path, "t.csv", 'text,label\n"' + "a,b\n" * 1000)
        message = message_of(ValueError, read_table, path)
    finally:
        csv.field_size_limit(before)
    assert "row 2" in message and "a quote that is not closed" in message


@pytest.mark.parametrize(
    ("name", "content", "header"),
    [
        ("t.tsv", "text\tmore\nA\t1\n\n  \nB\t2\n\n", True),
        ("t.csv", "text,more\nA,1\n\n  \nB,2\n\n", True),
        ("t.tsv", "A\n\n  \nB\n\n", False),
        ("t.jsonl", '{"text": "A"}\n\n  \n{"text": "B"}\n\n', True),
    ],
)
def test_blank_lines_have_a_prediction_but_are_no_examples_to_learn(tmp_path, name, content, header):
    path = write(tmp_path, name, content)
    column = ["text" if header else "0"]
    kept = [(row, text.strip()) for row, (text,) in read_columns(path, column, [], header, None, keeps_blanks=True)]
    first = 1 + (header and not name.endswith("jsonl"))
    assert kept == [(first + place, text) for place, text in enumerate(["A", "", "", "B", ""])]
    assert [text for _, (text,) in read_columns(path, column, [], header, None)] == ["A", "B"]


@pytest.mark.parametrize("label", [" yes", "yes ", "yes\u00a0"])
def test_blanks_around_labels_are_removed_with_a_warning(tmp_path, caplog, label):
    path = write(tmp_path, "t.tsv", f"text\tlabel\na\tvery good\nb\t{label}\nc\t{label}\n")
    assert read_table(path).labels == ("very good", "yes", "yes")
    assert [example.label for example in make_task("classification").read(path)] == ["very good", "yes", "yes"]
    text = f"{path}, row 3: blanks around labels are removed: {label!r} is read as 'yes', and so in 2 of 3 rows."
    assert [record.message for record in caplog.records] == [text, text]


def test_blanks_around_one_of_several_labels_are_removed_with_a_warning(tmp_path, caplog):
    path = write(tmp_path, "t.tsv", "text\tlabel\na\tx|x|two words\nb\t x |y\n")
    labels = [example.label for example in make_task("multi_label").read(path)]
    assert labels == [("x", "two words"), ("x", "y")]
    assert [record.message.removeprefix(str(path)) for record in caplog.records] == [
        ", row 3: blanks around labels are removed: (' x ', 'y') is read as ('x', 'y'), and so in 1 of 2 rows."
    ]


def test_numbers_with_blanks_give_no_warning(tmp_path, caplog):
    path = write(tmp_path, "t.tsv", "text\tlabel\na\t 1.5\nb\t2 \n")
    assert [example.label for example in make_task("regression").read(path)] == [1.5, 2.0]
    assert not caplog.records


def test_most_of_many_classes_with_a_single_row_are_told():
    line = describe_rare({f"class {n}": 1 + (n < 5) for n in range(11)})
    assert line.startswith("a single row of 6 of its 11 classes")
    assert describe_rare({f"class {n}": 1 + (n < 5) for n in range(10)}) == ""
    assert describe_rare({"a": 1, "b": 1}) == ""


def test_numbers_of_labels_are_compared_exactly():
    assert describe_lookalikes({str(2**64 - 1): 3, str(2**64 - 2): 3}) == ""
    assert "1.50" in describe_lookalikes({"1.5": 3, "1.50": 3})
    assert describe_lookalikes({"1e9999999999999999999": 3, "1_0": 3, "10": 1, "inf": 1, "infinity": 1}) == ""
