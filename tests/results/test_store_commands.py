"""The commands on a store, in processes of their own."""

import json

import pytest

from tests.commands import assert_refused, kbf


def test_list_and_show_and_compare(store):
    status, printed, error = kbf("runs", "list", store)
    assert (status, error) == (0, "") and printed.splitlines()[0].startswith("stage") and len(printed.splitlines()) == 7
    status, printed, _ = kbf("runs", "list", store, "--json")
    rows = {row["folder"].rpartition("/")[2]: row for row in json.loads(printed)}
    assert rows["p2"]["needed_by"] == ["f1"] and rows["p2"]["state"] == "whole" and rows["f1"]["name"] == "films"
    status, printed, _ = kbf("runs", "show", "p2", "--runs", store)
    assert "records: records " in printed and "pretraining.total_steps: 20" in printed and "finetuning f1" in printed
    values = json.loads(kbf("runs", "show", "f1", "--runs", store, "--json")[1])
    assert values["inputs"]["model"]["made_by"] == ["p2"] and values["scores"] == {"pretrained/seed-1 score": 0.75}
    status, printed, _ = kbf("runs", "compare", "p1", "p2", "--runs", store)
    assert [line.split() for line in printed.splitlines() if "total_steps" in line or "_loss" in line] == [
        ["pretraining.total_steps", "10", "20"],
        ["masked_lm_loss", "5.0", "4.0"],
    ]
    assert_refused(kbf("runs", "show", "p", "--runs", store), "of 2: pretraining p1, pretraining p2")
    assert_refused(kbf("runs", "show", "x", "--runs", store), "not in", "kbf runs list")


@pytest.mark.slow
def test_gc_asks_and_removes_what_it_said(store):
    arguments = ("runs", "gc", store, "--older-than", "0s")
    assert_refused(kbf("runs", "gc", store), "--older-than", "--keep-last")
    assert "Nothing was removed." in kbf(*arguments, "--dry-run")[1]
    assert (store / "finetuning" / "f1").exists()
    status, _, error = kbf(*arguments)  # nobody to ask
    assert status == 2 and error.splitlines()[-1].startswith("kbf: A removal must be confirmed")
    rows = json.loads(kbf(*arguments, "--keep-last", "1", "--yes", "--json")[1])
    assert sum(row["removed"] for row in rows) == sum(not row["keep"] for row in rows)
    assert (store / "finetuning" / "f1").exists()
    status, printed, _ = kbf(*arguments, "--yes")
    assert status == 0 and printed.splitlines()[-1].endswith(" MB.")
    assert kbf("runs", "list", store) == (0, "", f"There are no results in {store}.\n")


@pytest.mark.slow
def test_lineage_of_what_is_no_result(store):
    status, printed, _ = kbf("lineage", store / "finetuning" / "f1")
    assert status == 0 and printed.startswith("finetuning f1") and "\nCommands:\nkbf vocab --input TEXT" in printed
    chain = json.loads(kbf("lineage", store / "finetuning" / "f1", "--json")[1])
    assert [entry["stage"] for entry in chain] == ["vocabulary", "records", "pretraining", "finetuning"]
    assert_refused(kbf("lineage", store), "must hold manifest.json")
    (store / "records" / "r1" / "manifest.json").write_text("\x1b")
    assert_refused(kbf("lineage", store / "records" / "r1"), "manifest", "damaged")
