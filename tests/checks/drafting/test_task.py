"""What each column is taken for, in tables made by hand: real ones are in `test_init.py`."""

import json

import pytest

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
