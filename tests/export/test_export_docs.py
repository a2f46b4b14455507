"""The tables of docs/export.md list what is exported, and what is not."""

from pathlib import Path

from benchmarks.export_table import HEADS, list_columns
from keras_bert_flow.export.comparison import TOLERANCE
from keras_bert_flow.export.format import FORMATS, find_export_format
from tests.export.markdown_tables import read_tables

DOCS = (Path(__file__).parents[2] / "docs" / "export.md").read_text(encoding="utf-8")
TABLES = {table[0][:2]: table for table in read_tables(DOCS)}
KNOWN = [find_export_format(name) for name in FORMATS]


def test_docs_list_what_every_backend_writes():
    columns = [f"{find_export_format(name).title}, {backend}" for name, backend in list_columns()]
    header, *rows = TABLES["model", columns[0]]
    assert [*header[1:]] == columns
    assert [row[0].strip("`") for row in rows] == [*HEADS]
    assert all(float(number) <= TOLERANCE for row in rows for number in row[1:])


def test_docs_list_what_no_backend_writes_and_why():
    reasons = [(known.title, backend, reason) for known in KNOWN for backend, reason in known.refusals.items()]
    assert TABLES["format", "not written by"][1:] == reasons


def test_docs_list_the_outputs_of_every_kind():
    kinds = [kind.strip("` ") for row in TABLES["model", "outputs"][1:] for kind in row[0].split(",")]
    assert sorted(kinds) == sorted(HEADS)
