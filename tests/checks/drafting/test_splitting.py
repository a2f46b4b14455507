"""A table is divided so that no text is in both parts."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from keras_bert_flow.checks.draft_writing import divide_rows, name_parts, write_parts
from keras_bert_flow.cli.data_commands import read_test
from keras_bert_flow.tasks.core.texts import count_repeats
from keras_bert_flow.tasks.registry import make_task

pytestmark = pytest.mark.any_backend


def split_table(table, parts, header, task):
    chosen = divide_rows(table, parts, task, task.read(table))
    write_parts(table, parts, header, chosen)
    return [len(rows) for rows in chosen]


def write_rows(path, texts):
    if path.suffix == ".parquet":
        parquet.write_table(
            pa.table({"text": [text for text, _ in texts], "label": [label for _, label in texts]}), path
        )
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in texts))
    else:
        mark = "," if path.suffix == ".csv" else "\t"
        path.write_text(f"text{mark}label\n" + "".join(f"{text}{mark}{label}\n" for text, label in texts))


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".jsonl", ".parquet"])
def test_rows_of_one_text_stay_together(tmp_path, ending):
    table, parts = tmp_path / f"t{ending}", [tmp_path / f"{part}{ending}" for part in ("train", "dev")]
    texts = [(f"{'Text' if n % 3 else 'text'} {n * 7 % 61}", "ab"[n % 2]) for n in range(1000)]
    write_rows(table, texts)
    task = make_task("classification")
    counts = split_table(table, parts, ending not in (".jsonl", ".parquet"), task)
    train, dev = map(task.read, parts)
    assert counts == [len(train), len(dev)] and sum(counts) == 1000
    assert count_repeats(train, dev).same_label + count_repeats(train, dev).other_label == 0
    assert len({example.text.lower() for example in dev}) == 6
    assert sorted(e.text for e in [*train, *dev]) == sorted(text for text, _ in texts)


def test_a_test_table_has_texts_of_its_own(tmp_path):
    table, output = tmp_path / "t.tsv", tmp_path / "mine.yaml"
    write_rows(table, [(f"text {n % 600}", "ab"[n % 2]) for n in range(1000)])
    task = make_task("classification")
    rows = task.read(table)
    parts = name_parts(table, output, rows, with_test=True)
    assert [part.name for part in parts] == ["mine-train.tsv", "mine-dev.tsv", "mine-test.tsv"]
    assert name_parts(table, output, rows, with_test=False) == parts[:2]
    assert name_parts(table, output, rows[:499], with_test=True) == parts[:2]  # too few to measure twice
    counts = split_table(table, parts, True, task)
    found = [task.read(part) for part in parts]
    assert counts == [*map(len, found)] and sum(counts) == 1000
    texts = [{example.text for example in part} for part in found]
    assert [len(part) for part in texts] == [480, 60, 60] and len(set.union(*texts)) == 600


@pytest.mark.parametrize("order", ["alternating", "sorted"])
def test_parts_have_the_same_shares_of_classes_in_any_order(tmp_path, order):
    table, parts = tmp_path / "t.tsv", [tmp_path / "train.tsv", tmp_path / "dev.tsv"]
    write_rows(table, [(f"text {n}", "ab"[n % 2 if order == "alternating" else n > 20]) for n in range(1, 41)])
    assert split_table(table, parts, True, make_task("classification")) == [36, 4]
    dev = make_task("classification").read(parts[1])
    assert [e.label for e in dev] == ["b", "a", "b", "a"] if order == "alternating" else ["a", "a", "b", "b"]
    assert [e.text for e in dev] == [
        f"text {n}" for n in ((19, 20, 39, 40) if order == "alternating" else (10, 20, 30, 40))
    ]


def test_numbers_are_divided_row_by_row(tmp_path):
    table, parts = tmp_path / "t.tsv", [tmp_path / "train.tsv", tmp_path / "dev.tsv"]
    write_rows(table, [(f"text {n}", n % 7) for n in range(1, 31)])
    assert split_table(table, parts, True, make_task("regression")) == [27, 3]
    assert [e.text for e in make_task("regression").read(parts[1])] == ["text 10", "text 20", "text 30"]


def test_too_few_texts_are_refused(tmp_path):
    table, parts = tmp_path / "t.tsv", [tmp_path / "train.tsv", tmp_path / "dev.tsv"]
    write_rows(table, [(f"text {n % 19}", "ab"[n % 2]) for n in range(100)])
    with pytest.raises(ValueError, match="at least 20 different texts. Received: .*, with 19 in 100 rows. Give --dev"):
        split_table(table, parts, True, make_task("classification"))
    assert not any(part.exists() for part in parts)


@pytest.mark.parametrize("kind", ["classification", "multi_label"])
def test_every_class_has_a_row_to_learn_from(tmp_path, kind):
    table, parts = tmp_path / "t.tsv", [tmp_path / f"{part}.tsv" for part in ("train", "dev", "test")]
    rare = {599: "y", 600: "y;z" if kind == "multi_label" else "z"}  # the last text is a tenth one
    write_rows(table, [(f"text {n}", rare.get(n, "ab"[n % 2])) for n in range(1, 601)])
    task = make_task(kind, **({"separator": ";"} if kind == "multi_label" else {}))
    assert split_table(table, parts, True, task) == [481, 59, 60]
    train = task.read(parts[0])
    assert {name for example in train for name in task.names_of(example)} == {"a", "b", "y", "z"}
    assert {"text 599", "text 600"} <= {example.text for example in train}


@pytest.mark.parametrize("classes", [120, 60])
def test_classes_of_single_texts_leave_nothing_to_measure_on(tmp_path, classes):
    table, parts = tmp_path / "t.tsv", [tmp_path / "train.tsv", tmp_path / "dev.tsv"]
    write_rows(table, [(f"text {n % classes}", f"class {n % classes}") for n in range(120)])
    with pytest.raises(ValueError, match=f"with {classes} classes in 120 rows, .* Give --dev, merge rare classes"):
        split_table(table, parts, True, make_task("classification"))
    assert not any(part.exists() for part in parts)


def test_scores_that_are_all_the_same_in_training_are_refused(tmp_path):
    table, parts = tmp_path / "t.tsv", [tmp_path / "train.tsv", tmp_path / "dev.tsv"]
    write_rows(table, [(f"text {n}", 0.5 + (n == 10)) for n in range(1, 31)])
    with pytest.raises(ValueError, match="at least two different scores"):
        split_table(table, parts, True, make_task("regression"))
    assert not any(part.exists() for part in parts)


def test_lines_of_blanks_are_no_rows(tmp_path):
    table, parts = tmp_path / "t.jsonl", [tmp_path / "train.jsonl", tmp_path / "dev.jsonl"]
    write_rows(table, [(f"text {n}", "ab"[n % 2]) for n in range(1, 31)])
    table.write_text(table.read_text().replace("\n", "\n\t\n", 3))
    assert split_table(table, parts, False, make_task("classification")) == [27, 3]
    assert [e.text for e in make_task("classification").read(parts[1])] == ["text 9", "text 20", "text 29"]


def test_a_test_table_is_given_or_found_if_it_has_labels(tmp_path):
    task, (train, dev, test, own) = (
        make_task("classification"),
        (tmp_path / f"{n}.tsv" for n in ("train", "dev", "test", "own")),
    )
    for path in (train, dev, own):
        write_rows(path, [("text 1", "a"), ("text 2", "b")])
    assert read_test(None, train, dev, task) == ({}, [])
    test.write_text("text\nwithout a label\n")
    found, (remark,) = read_test(None, train, dev, task)
    assert found == {} and remark.startswith(f"{test} is not used as a test table: ")
    with pytest.raises(ValueError, match="test.tsv, row 1"):
        read_test(test, train, dev, task)
    write_rows(test, [("text 3", "a")])
    assert read_test(None, train, dev, task) == ({"test": (test, task.read(test))}, [])
    assert read_test(None, train, test, task) == read_test(None, train, None, task) == ({}, [])
    with pytest.raises(ValueError, match="--test must be another table .* which is the dev table"):
        read_test(dev, train, dev, task)
    assert read_test(own, train, dev, task)[0]["test"][0] == own
