"""What each column is taken for, in tables made by hand: real ones are in `test_init.py`."""

import datetime
import decimal
import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert_flow.checks.draft_table import draft_task, find_beside, find_header, look_at_table
from keras_bert_flow.tasks.registry import make_task

FILMS = [f"a film about {thing} that is never dull" for thing in ("cats", "dogs", "rain", "war", "love", "tea")] * 4


def write(path, rows, separator="\t"):
    path.write_text("\n".join(separator.join(map(str, row)) for row in rows) + "\n")
    return path


@pytest.mark.parametrize(
    ("labels", "kind", "more"),
    [
        (["good", "bad"], "classification", {}),
        ([0, 1, 2], "classification", {}),
        ([number / 7 for number in range(24)], "regression", {}),
        (range(24), "regression", {}),
        ([0.25, 0.75], "classification", {}),
        ([0.25, 0.5, 0.75], "regression", {}),
        ([f"{n}{'0' * 400}" for n in (1, 2)], "classification", {}),
        (["a|b", "b|c", "c|a", "a|b|c", "a"], "multi_label", {"separator": "|"}),
        (["a;b", "b;c", "c;a", "a;b;c", ""], "multi_label", {"separator": ";"}),
    ],
)
def test_labels_tell_the_kind(tmp_path, labels, kind, more):
    rows = [("text", "label"), *((text, list(labels)[n % len(labels)]) for n, text in enumerate(FILMS))]
    drafted = draft_task(write(tmp_path / "t.tsv", rows))
    assert (drafted.kind, drafted.settings) == (kind, {"header": True, "text": "text", "label": "label"} | more)
    assert {"kind", "header", "text", "label"} <= drafted.reasons.keys()


def test_columns_without_a_header(tmp_path):
    rows = [(f"id{n}", "x", n % 2, text) for n, text in enumerate(FILMS)]
    drafted = draft_task(write(tmp_path / "t.tsv", rows))
    assert drafted.settings == {"header": False, "text": "3", "label": "2"}
    assert drafted.remarks == ("Not used: 0, 1.",)


@pytest.mark.parametrize(("order", "delimiter"), [(1, ","), (-1, ";")])
def test_index_of_pandas_is_no_column(tmp_path, order, delimiter):
    rows = [(number, text, ("for", "against")[number % 2]) for number, text in enumerate(FILMS)]
    path = write(tmp_path / "t.csv", [("", "what", "stance"), *rows[::order]], delimiter)
    drafted = draft_task(path)
    assert drafted.kind == "classification"
    assert drafted.settings == {"header": True, "text": "what", "label": "stance"}
    assert "pandas" in drafted.reasons["header"] and not drafted.remarks
    assert make_task(**drafted.settings, kind="classification").read(path)[0].text == rows[::order][0][1]


def test_pairs_by_name_and_by_shape(tmp_path):
    named = [("premise", "hypothesis", "gold_label"), *((text, f"no {text}", n % 3) for n, text in enumerate(FILMS))]
    settings = draft_task(write(tmp_path / "n.csv", named, ",")).settings
    assert (settings["text"], settings["text_pair"], settings["label"]) == ("premise", "hypothesis", "gold_label")
    settings = draft_task(write(tmp_path / "t.tsv", named[1:])).settings
    assert (settings["header"], settings["text"], settings["text_pair"]) == (False, "0", "1")


def test_columns_of_zero_and_one_are_labels(tmp_path):
    rows = [("text", "rude", "loud", "kind"), *((text, n % 2, n // 2 % 2, n // 3 % 2) for n, text in enumerate(FILMS))]
    drafted = draft_task(write(tmp_path / "t.tsv", rows))
    assert (drafted.kind, drafted.settings["label_columns"]) == ("multi_label", ["rude", "loud", "kind"])
    assert "label" not in drafted.settings


def test_lines_of_json(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(
        "".join(json.dumps({"body": text, "labels": ["a", "b"][: n % 3]}) + "\n" for n, text in enumerate(FILMS))
    )
    drafted = draft_task(path)
    assert (drafted.kind, drafted.settings) == ("multi_label", {"text": "body", "label": "labels"})
    path.write_text(json.dumps({"words": ["a"], "tags": ["O"]}))
    assert draft_task(path).kind == "token_classification"


def test_words_with_tags(tmp_path):
    path = tmp_path / "t.txt"
    path.write_text("Jan N B-PER\nslaapt V O\n\nZij P O\neet V O\n")
    assert draft_task(path).kind == "token_classification"
    path.write_text("A sentence.\nAnother one.\n")
    with pytest.raises(ValueError, match="must be a table"):
        draft_task(path)


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("text", "note"), *((text, f"{n} of") for n, text in enumerate(FILMS))], "a column of labels"),
        ([("a", "label"), *((n, n % 2) for n in range(24))], "a column of texts"),
        ([("text", "label"), ("only one",)], "as many columns"),
    ],
)
def test_table_that_cannot_be_told_is_refused(tmp_path, rows, words):
    with pytest.raises(ValueError, match=words):
        draft_task(write(tmp_path / "t.tsv", rows))


@pytest.mark.parametrize("name", ["label", "topic"])
def test_named_labels_that_cannot_be_learnt_are_named(tmp_path, name):
    path = tmp_path / "t.tsv"
    for labels, words in (
        (["a", "b", ""], f"row 4: column '{name}' must hold text. Received: ''"),
        (["a"], f"column '{name}', where all are 'a'"),
    ):
        rows = [("text", name), *((text, labels[n % len(labels)]) for n, text in enumerate(FILMS))]
        with pytest.raises(ValueError, match=words):
            draft_task(write(path, rows))


def test_other_columns_stand_in_for_named_ones_except_for_label(tmp_path):
    rows = [(text, "" if n == 5 else "ab"[n % 2], "xyz"[n % 3]) for n, text in enumerate(FILMS)]
    assert draft_task(write(tmp_path / "t.tsv", [("text", "topic", "genre"), *rows])).settings["label"] == "genre"
    with pytest.raises(ValueError, match="row 7: column 'label' must hold text"):
        draft_task(write(tmp_path / "t.tsv", [("text", "label", "genre"), *rows]))


def test_columns_that_are_no_labels_are_described(tmp_path):
    rows = [(text, n, "" if n == 1 else "x", "same") for n, text in enumerate(FILMS)]
    with pytest.raises(ValueError, match=r"with text \(texts\), n \(24 values in 24 rows\), note \(blank in row 3\)"):
        draft_task(write(tmp_path / "t.tsv", [("text", "n", "note", "all"), *rows]))


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ([None, *"ab" * 11, "c"], "row 1: column 'label' must hold text. Received: None"),
        ([None] * 24, "row 1: column 'label' must hold text. Received: None"),
        ([decimal.Decimal(n % 2) for n in range(24)], "column 'label' must hold .* a column of type decimal"),
        ([datetime.datetime(2020, 1, 1 + n % 2) for n in range(24)], "column 'label' must hold .* type timestamp"),
        ([{"a": n % 2} for n in range(24)], "column 'label' must hold .* type struct"),
    ],
)
def test_type_of_labels_in_parquet_is_named(tmp_path, label, words):
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table({"text": FILMS, "label": label, "genre": list("xyz") * 8}), path)
    with pytest.raises(ValueError, match=words):
        draft_task(path)


def test_type_of_texts_in_parquet_is_named(tmp_path):
    path = tmp_path / "t.parquet"
    for texts in ([text.encode() for text in FILMS], [{"a": text} for text in FILMS]):
        for columns in ({"label": list("ab") * 12}, {"label": list("ab") * 12, "other": FILMS}, {}):
            parquet.write_table(pa.table({"text": texts} | columns), path)
            with pytest.raises(ValueError, match="column 'text' must hold text.* a column of type"):
                draft_task(path)


def test_repeated_names_in_parquet_are_refused(tmp_path):
    path = tmp_path / "t.parquet"
    parquet.write_table(pa.table([FILMS, FILMS, list("ab") * 12], ["text", "text", "label"]), path)
    with pytest.raises(ValueError, match="a column must be named once. Received: 'text', 2 times"):
        draft_task(path)


def test_numbers_and_booleans_of_json_are_spelt_as_a_task_reads_them(tmp_path):
    path = tmp_path / "t.jsonl"
    for labels, reason in (
        ([True, False], "2 classes: 'true', 'false'"),
        ([10**400, 1], f"2 classes: '1{'0' * 38}..., '1'"),
        ([10**400, 1, 2], f"3 classes: '1{'0' * 38}..., '1', '2'"),
        ([0.25, 0.75], "2 classes: '0.25', '0.75'"),
        ([0, 0.5, 1], "3 different numbers from 0 to 1"),
    ):
        rows = [{"text": text, "label": labels[n % len(labels)]} for n, text in enumerate(FILMS)]
        path.write_text("\n".join(map(json.dumps, rows)))
        assert draft_task(path).reasons["kind"] == reason
    rows = [{"text": text, "label": 10**400 + n} for n, text in enumerate(FILMS)]
    path.write_text("\n".join(map(json.dumps, rows)))
    drafted = draft_task(path)
    with pytest.raises(ValueError, match="row 1: column 'label' must hold a finite number"):
        make_task(drafted.kind, **drafted.settings).read(path)


def test_header_is_told_by_names_numbers_and_repetition():
    assert find_header(["Text", "x"], [["a b", "1"]])[0]
    assert find_header(["comment", "points"], [["a b", "1"], ["c", "2"]])[0]
    assert find_header(["said", "mood"], [["a b", "glad"], ["c", "glad"]])[0]
    assert not find_header(["a b", "glad"], [["c d", "glad"], ["e", "sad"], ["f", "sad"]])[0]
    assert not find_header(["a", ""], [["b", "1"]])[0]
    assert not find_header(["a", "1"], [["b", "2"]])[0]


def test_table_to_measure_on_is_beside(tmp_path):
    train = write(tmp_path / "my_train.tsv", [("a", 1)])
    assert find_beside(train) is None
    (tmp_path / "my_valid.tsv").touch()
    (tmp_path / "my_test.tsv").touch()
    assert find_beside(train) == tmp_path / "my_valid.tsv"
    assert find_beside(tmp_path / "all.tsv") is None


def test_odd_names_stay_values(tmp_path):
    rows = [("text", "label: [x]"), *((text, "# yes" if n % 2 else "- no") for n, text in enumerate(FILMS))]
    table = look_at_table(write(tmp_path / "t.tsv", rows))
    assert [column.name for column in table.columns] == ["text", "label: [x]"]
    assert draft_task(tmp_path / "t.tsv").settings["label"] == "label: [x]"
